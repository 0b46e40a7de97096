package push

import (
	"fmt"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/translate/patch"
	"heddle.io/heddle/control/xds"
)

// virtualHostsField is the number of RouteConfiguration.virtual_hosts.
const virtualHostsField = 2

// packTable marshals a route table. Tables of large meshes have thousands of virtual hosts, of which a change makes one anew,
// and those of other kinds of proxies have most of them too: each is marshalled once, and all tables share its bytes. They
// stand behind the table's other fields, whose order is free (https://protobuf.dev/programming-guides/encoding/#order).
func (p *Pusher) packTable(table *routev3.RouteConfiguration) (*xds.Resource, error) {
	options := proto.MarshalOptions{Deterministic: true}
	text, err := options.Marshal(patch.WithoutHosts(table))
	if err != nil {
		return nil, fmt.Errorf("marshal routes %s: %w", table.Name, err)
	}
	parts := append(make([]*xds.Part, 0, 1+len(table.VirtualHosts)), xds.NewPart(text))
	for _, h := range table.VirtualHosts {
		part, known := p.hosts[h]
		if !known {
			size := options.Size(h)
			text := protowire.AppendTag(make([]byte, 0, protowire.SizeTag(virtualHostsField)+protowire.SizeBytes(size)), virtualHostsField, protowire.BytesType)
			if text, err = options.MarshalAppend(protowire.AppendVarint(text, uint64(size)), h); err != nil {
				return nil, fmt.Errorf("marshal virtual host %s: %w", h.Name, err)
			}
			part = xds.NewPart(text)
			p.hosts[h] = part
		}
		parts = append(parts, part)
	}
	return xds.NewResourceOf(xds.Routes, table.Name, table.ProtoReflect().Descriptor().FullName(), parts), nil
}
