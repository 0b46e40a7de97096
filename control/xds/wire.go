package xds

import (
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // The codec for all other messages.
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// GRPC makes a gRPC server that offers the aggregated discovery service.
func (s *Server) GRPC(options ...grpc.ServerOption) *grpc.Server {
	g := grpc.NewServer(append(options, grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}))...)
	discovery.RegisterAggregatedDiscoveryServiceServer(g, s)
	return g
}

// wire is a response as it is sent: a few bytes of its own, and those of resources that it shares with all other proxies. A
// thousand proxies that are sent a megabyte each hold that megabyte once.
type wire struct{ mem.BufferSlice }

// codec sends responses as they are. What else is sent or received is marshalled as usual.
type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(m any) (mem.BufferSlice, error) {
	if w, is := m.(wire); is {
		return w.BufferSlice, nil
	}
	return c.CodecV2.Marshal(m)
}

// newWire makes a response of one without resources, which takes them behind its other fields.
func newWire(head proto.Message, resources []*Resource, entry func(*Resource) mem.SliceBuffer) (wire, error) {
	first, err := proto.Marshal(head)
	if err != nil {
		return wire{}, err
	}
	out := append(make(mem.BufferSlice, 0, 1+len(resources)), mem.SliceBuffer(first))
	for _, r := range resources {
		out = append(out, entry(r))
		for _, part := range r.parts {
			out = append(out, part.bytes)
		}
	}
	return wire{out}, nil
}

// delta is the response in the incremental protocol.
func (r *response) delta() (wire, error) {
	return newWire(&discovery.DeltaDiscoveryResponse{
		TypeUrl: typeNames[r.typ].url, Nonce: r.nonce, SystemVersionInfo: r.version, RemovedResources: r.removed,
	}, r.resources, func(one *Resource) mem.SliceBuffer { return one.entry })
}

// world is the response in the state-of-the-world protocol.
func (r *response) world() (wire, error) {
	return newWire(&discovery.DiscoveryResponse{TypeUrl: typeNames[r.typ].url, Nonce: r.nonce, VersionInfo: r.version},
		r.resources, func(one *Resource) mem.SliceBuffer { return one.entry[one.whole:] })
}
