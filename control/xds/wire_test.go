package xds

import (
	"testing"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// TestResponsesAreWhatTheirMessagesMarshalTo reads what is put together of shared bytes as a client does.
func TestResponsesAreWhatTheirMessagesMarshalTo(t *testing.T) {
	pack := func(m proto.Message) *anypb.Any {
		t.Helper()
		packed, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return packed
	}
	c := &cluster.Cluster{Name: "a", AltStatName: string(make([]byte, 300))}
	table := &route.RouteConfiguration{Name: "80", VirtualHosts: []*route.VirtualHost{{Name: "x", Domains: []string{"x"}}, {Name: "y"}}}
	one, err := NewResource(Clusters, "a", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	parts := []*Part{NewPart([]byte("\x0a\x0280"))}
	for _, h := range table.VirtualHosts {
		text, err := proto.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, NewPart(protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), text)))
	}
	other := NewResourceOf(Routes, "80", table.ProtoReflect().Descriptor().FullName(), parts)
	r := &response{typ: Clusters, nonce: "7", version: "3", resources: []*Resource{one, other}, removed: []string{"gone"}}

	var delta discovery.DeltaDiscoveryResponse
	read(t, &delta, r.delta)
	wantDelta := &discovery.DeltaDiscoveryResponse{
		TypeUrl: typeNames[Clusters].url, Nonce: "7", SystemVersionInfo: "3", RemovedResources: []string{"gone"},
		Resources: []*discovery.Resource{
			{Name: "a", Version: one.Version(), Resource: pack(c)}, {Name: "80", Version: other.Version(), Resource: pack(table)},
		},
	}
	if !proto.Equal(&delta, wantDelta) {
		t.Errorf("incremental:\n%v\nwant\n%v", &delta, wantDelta)
	}
	var world discovery.DiscoveryResponse
	read(t, &world, r.world)
	wantWorld := &discovery.DiscoveryResponse{
		TypeUrl: typeNames[Clusters].url, Nonce: "7", VersionInfo: "3", Resources: []*anypb.Any{pack(c), pack(table)},
	}
	if !proto.Equal(&world, wantWorld) {
		t.Errorf("state of the world:\n%v\nwant\n%v", &world, wantWorld)
	}
	for i, r := range r.resources {
		if m, err := r.Message(); err != nil || !proto.Equal(m, []proto.Message{c, table}[i]) {
			t.Errorf("%s holds %v, %v", r.Name(), m, err)
		}
		if got, want := r.size(), proto.Size(&discovery.DeltaDiscoveryResponse{Resources: wantDelta.Resources[i : i+1]}); got != want {
			t.Errorf("%s: size %d, has %d bytes", r.Name(), got, want)
		}
	}
}

func read(t *testing.T, into proto.Message, form func() (wire, error)) {
	t.Helper()
	message, err := form()
	if err != nil {
		t.Fatal(err)
	}
	bytes, err := (codec{}).Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(bytes.Materialize(), into); err != nil {
		t.Fatal(err)
	}
}
