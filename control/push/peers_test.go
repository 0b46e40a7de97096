package push

import (
	"net/netip"
	"slices"
	"testing"

	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/translate"
)

// versionsOf are those of all resources, by type and name; all groups have different ones.
func (p *Pusher) versionsOf() map[string]string {
	out := map[string]string{}
	for _, g := range p.groups {
		for _, r := range g.group.Change(nil).Removed {
			out[r.Type().String()+" "+r.Name()] = r.Version()
		}
	}
	return out
}

// What changes behind the gateways of another cluster is sent as the endpoints of the service that it is about, and nothing else is made
// anew. Where more changes than that, more is.
func TestEndpointsAbroadAreOneAssignment(t *testing.T) {
	w, p := newTown(t, 1), newPusher(t)
	w.put("apiVersion: v1\nkind: Namespace\nmetadata: {name: red}\n---\napiVersion: heddle.io/v1alpha1\nkind: GlobalNamespace\nmetadata: {name: g}\nspec: {domain: acme.demo, mappings: [{cluster: '*', namespace: red}]}\n")
	offer := func(name string, ready uint32, identity string) *registry.Export {
		return &registry.Export{Namespace: "red", Name: name, Ports: []registry.ExportPort{{Name: "http", Number: 80, Protocol: "HTTP"}},
			Identities: []string{w.settings.Identity("red", identity)}, Groups: []registry.ExportGroup{{Ready: ready}}}
	}
	two := registry.Peer{Cluster: "two", Reachable: true, Gateways: []netip.AddrPort{netip.MustParseAddrPort("198.51.100.7:15443")}}
	two.Services = registry.NewExports(*offer("s-1", 1, "x"), *offer("s-2", 1, "x"), *offer("s-3", 0, "x"))
	say := func() {
		w.peers = []registry.Peer{two}
		w.changed.Peers = &w.peers
		w.update(p)
	}
	p.attach(t, translate.Node{Type: translate.Sidecar, Address: netip.MustParseAddr("10.0.0.1"), Name: "a-0", Namespace: "red", Domain: "cluster.local", Labels: map[string]string{"app": "a"}, Heddle: true})
	say()
	for _, c := range []struct {
		what   string
		change func()
		want   []string
	}{
		{"an endpoint", func() { two.Services = two.Services.With([]*registry.Export{offer("s-1", 2, "x")}, nil) }, []string{"EDS outbound|80||s-1.red.svc.cluster.local"}},
		{"the link", func() { two.Reachable = false }, []string{"EDS outbound|80||s-1.red.svc.cluster.local", "EDS outbound|80||s-2.red.svc.cluster.local"}},
		{"nothing", func() {}, nil},
		{"who may answer", func() { two.Services = two.Services.With([]*registry.Export{offer("s-2", 1, "y")}, nil) }, []string{"CDS outbound|80||s-2.red.svc.cluster.local", "EDS outbound|80||s-2.red.svc.cluster.local"}},
	} {
		before := p.versionsOf()
		c.change()
		say()
		var got []string
		for name, version := range p.versionsOf() {
			if before[name] != version {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: made anew are %q, want %q", c.what, got, c.want)
		}
	}
}
