package translate

import (
	"strings"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"heddle.io/heddle/control/model"
)

// What cannot be made is said, also of what is made of all shares at the end, and the cache keeps nothing of it.
func TestWhatCannotBeMadeIsSaid(t *testing.T) {
	s := web(func(*model.Service) {})
	mesh := &model.Mesh{Settings: model.DefaultSettings("one"), Services: []*model.Service{s}}
	c := NewCache()
	c.enter(mesh)
	k := Kind{Role: Outbound, Namespace: "shop"}
	remake := func(filters ...*hcmv3.HttpFilter) (Delta, error) {
		client := &Client{base: base{shares: newShares(), kind: k}, tables: map[uint16]*table{}}
		g := c.generator(mesh, k)
		g.routeFilters = filters
		return client.remake(g, map[string]bool{s.Host: true}, nil)
	}
	// No text of a protobuf message is like that.
	delta, err := remake(&hcmv3.HttpFilter{Name: "\xff"})
	if err == nil || !strings.Contains(err.Error(), "packing a envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager") {
		t.Errorf("it says %v, and gives %v", err, delta.Set.Listeners)
	}
	if delta, err = remake(); err != nil || len(delta.Set.Listeners) != 1 {
		t.Fatalf("%v, %+v", err, delta.Set.Listeners)
	}
	for _, chain := range delta.Set.Listeners[0].FilterChains {
		for _, f := range chain.Filters {
			if f.GetTypedConfig() == nil {
				t.Errorf("filter %s has no configuration", f.Name)
			}
		}
	}
}
