package identity

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // The codec of all messages.
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// What a proxy may ask for over a stream of its secrets. There are two; others, which a configuration may name, are waited for.
const (
	maxSecretNames = 16
	maxSecretName  = 253
	// maxSecretRequest, in bytes, has room for what a proxy says of itself.
	maxSecretRequest = maxNode + 64<<10
)

// secretRequests are the names that streams of secrets have ever asked for: the server of secrets keeps those of a stream, also some that
// it gave back.
type secretRequests struct {
	refusals *Refusals
	mu       sync.Mutex
	streams  map[streamID]map[string]struct{}
}

func newSecretRequests(refusals *Refusals) *secretRequests {
	return &secretRequests{refusals: refusals, streams: map[streamID]map[string]struct{}{}}
}

func (s *secretRequests) whole(number int64, r *discoveryv3.DiscoveryRequest) error {
	return s.admit(streamID{false, number}, r.GetTypeUrl(), r.GetResourceNames())
}

func (s *secretRequests) delta(number int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	names := slices.AppendSeq(slices.Concat(r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe()), maps.Keys(r.GetInitialResourceVersions()))
	return s.admit(streamID{true, number}, r.GetTypeUrl(), names)
}

// admit refuses a request that the server of secrets would keep more of than a proxy needs. After an error the stream ends.
func (s *secretRequests) admit(stream streamID, typeURL string, names []string) error {
	if typeURL != "" && typeURL != resource.SecretType {
		return s.refuse(codes.InvalidArgument, "a stream of secrets has no other resources")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.streams[stream]
	if asked == nil {
		asked = map[string]struct{}{}
		s.streams[stream] = asked
	}
	for _, name := range names {
		if len(name) > maxSecretName {
			return s.refuse(codes.ResourceExhausted, "a secret's name may have %d bytes, and the proxy gives one of %d", maxSecretName, len(name))
		}
		asked[name] = struct{}{}
		if len(asked) > maxSecretNames {
			return s.refuse(codes.ResourceExhausted, "a stream may ask for %d secrets, and this one asks for more", maxSecretNames)
		}
	}
	return nil
}

func (s *secretRequests) refuse(code codes.Code, format string, of ...any) error {
	s.refusals.names.Add(1)
	return status.Errorf(code, format, of...)
}

func (s *secretRequests) close(stream streamID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, stream)
}

// boundSecretRequests has messages of streams of secrets be bounded before they are decoded: decoded, a message of short names is many
// times as large.
func boundSecretRequests(refusals *Refusals) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, call *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if !strings.HasPrefix(call.FullMethod, "/"+secretv3.SecretDiscoveryService_ServiceDesc.ServiceName+"/") {
			return handler(server, stream)
		}
		bounded := &boundedStream{ServerStream: stream}
		err := handler(server, bounded)
		if large := bounded.large.Load(); large != 0 {
			// The handler took it for the end.
			refusals.messages.Add(1)
			return status.Errorf(codes.ResourceExhausted, "a message of a stream of secrets may have %d bytes, and the proxy sent one of %d", maxSecretRequest, large)
		}
		return err
	}
}

// boundedStream receives messages of maxSecretRequest at most, and ends with a larger one.
type boundedStream struct {
	grpc.ServerStream
	// large is the size of one that was too large.
	large atomic.Int64
}

var errLargeMessage = errors.New("the message is too large")

// RecvMsg implements [grpc.ServerStream].
func (s *boundedStream) RecvMsg(m any) error {
	b := &boundedMessage{message: m}
	if err := s.ServerStream.RecvMsg(b); err != nil {
		return err
	}
	if b.bytes > maxSecretRequest {
		s.large.Store(int64(b.bytes))
		return errLargeMessage
	}
	return nil
}

// boundedMessage is one that is to be received. It stays as it is when what comes is too large, whose bytes are counted.
type boundedMessage struct {
	message any
	bytes   int
}

// boundingCodec decodes bounded messages; all else is as usual.
type boundingCodec struct{ encoding.CodecV2 }

func (c boundingCodec) Unmarshal(data mem.BufferSlice, m any) error {
	b, bounded := m.(*boundedMessage)
	if !bounded {
		return c.CodecV2.Unmarshal(data, m)
	}
	if b.bytes = data.Len(); b.bytes > maxSecretRequest {
		return nil
	}
	return c.CodecV2.Unmarshal(data, b.message)
}
