package translate

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"heddle.io/heddle/control/model"
)

// TestServersTakeClientsOfFormerMeshes: while a mode is switched and a port moved, a server has the chains for both.
func TestServersTakeClientsOfFormerMeshes(t *testing.T) {
	mesh := func(mode model.MTLSMode, target uint16) *model.Mesh {
		return &model.Mesh{
			Settings: model.DefaultSettings("c"), PeerModes: []*model.PeerMode{{Namespace: "shop", Mode: mode}},
			Services: []*model.Service{{
				Namespace: "shop", Name: "web", Host: "web.shop.svc.cluster.local", Address: netip.MustParseAddr("10.96.1.1"),
				Ports: []model.ServicePort{{Number: 80, Protocol: model.HTTP, Target: target}}, Selector: map[string]string{"app": "web"},
			}},
		}
	}
	cache := NewCache()
	kinds, err := Kinds(mesh(model.MTLSStrict, 1), node())
	if err != nil {
		t.Fatal(err)
	}
	chains := func(m *model.Mesh) []string {
		t.Helper()
		made, err := cache.Make(m, kinds[1])
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, c := range made.Listeners[0].FilterChains {
			if port := c.FilterChainMatch.GetDestinationPort().GetValue(); port != 0 && port != PortInbound {
				out = append(out, fmt.Sprintf("%d %s", port, c.FilterChainMatch.GetTransportProtocol()))
			}
		}
		return out
	}
	wanted, former := mesh(model.MTLSDisable, 9090), mesh(model.MTLSStrict, 8080)
	if got := chains(wanted); !slices.Equal(got, []string{"9090 "}) {
		t.Errorf("alone: %v", got)
	}
	both := *wanted
	both.Accepted = []*model.Mesh{former}
	if got := chains(&both); !slices.Equal(got, []string{"8080 tls", "8080 raw_buffer", "9090 tls", "9090 raw_buffer"}) {
		t.Errorf("with former clients: %v", got)
	}
	if got := chains(wanted); !slices.Equal(got, []string{"9090 "}) {
		t.Errorf("when they are gone: %v", got)
	}
}
