package push

import (
	"fmt"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"heddle.io/heddle/control/translate/patch"
	"heddle.io/heddle/control/xds"
)

// virtualHostsField is the number of RouteConfiguration.virtual_hosts.
const virtualHostsField = 2

// packTable marshals a route table. Tables of large meshes have thousands of virtual hosts, of which a change makes one anew,
// and those of other kinds of proxies have most of them too: each is marshalled once. They stand behind the table's other
// fields, whose order is free (https://protobuf.dev/programming-guides/encoding/#order).
func (p *Pusher) packTable(table *routev3.RouteConfiguration) (*xds.Resource, error) {
	options := proto.MarshalOptions{Deterministic: true}
	text, err := options.Marshal(patch.WithoutHosts(table))
	if err != nil {
		return nil, fmt.Errorf("marshal routes %s: %w", table.Name, err)
	}
	size := len(text)
	parts := make([][]byte, 0, len(table.VirtualHosts))
	for _, h := range table.VirtualHosts {
		part, known := p.hosts[h]
		if !known {
			if part, err = options.Marshal(h); err != nil {
				return nil, fmt.Errorf("marshal virtual host %s: %w", h.Name, err)
			}
			p.hosts[h] = part
		}
		parts = append(parts, part)
		size += len(part) + protowire.SizeTag(virtualHostsField) + protowire.SizeVarint(uint64(len(part)))
	}
	all := append(make([]byte, 0, size), text...)
	for _, part := range parts {
		all = protowire.AppendTag(all, virtualHostsField, protowire.BytesType)
		all = protowire.AppendBytes(all, part)
	}
	return xds.NewPackedResource(xds.Routes, table.Name, &anypb.Any{TypeUrl: "type.googleapis.com/" + string(table.ProtoReflect().Descriptor().FullName()), Value: all}), nil
}
