package translate

import (
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// pack puts a message into an Any. Equal messages give equal bytes, so that nothing is sent twice.
func (g *generator) pack(m proto.Message) *anypb.Any {
	out := &anypb.Any{}
	if err := anypb.MarshalFrom(out, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		if g.err == nil {
			g.err = fmt.Errorf("packing a %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
		}
		return nil
	}
	return out
}

func socketAddress(address string, port uint16) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
	}}}
}

// ads says that a resource comes over the stream that everything comes over. A resource that is late must not be
// given up: the proxy keeps what it has until it comes.
func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   durationpb.New(0),
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

func duration(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

func flag(v bool) *wrapperspb.BoolValue { return wrapperspb.Bool(v) }

func count(v uint32) *wrapperspb.UInt32Value { return wrapperspb.UInt32(v) }
