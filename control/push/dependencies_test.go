package push

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// observing is a town whose namespace red observes dependencies, with n services at 10.96.3.0 and so on.
func observing(t *testing.T, n int) *town {
	t.Helper()
	w := newTown(t, 1)
	w.put("apiVersion: v1\nkind: Namespace\nmetadata: { name: red, labels: { heddle.io/dependencies: observed } }\n")
	for i := range n {
		w.offer(i)
	}
	return w
}

func (w *town) offer(i int) {
	w.put(fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: { name: s-%d, namespace: red }\nspec: { clusterIP: %s, selector: { app: s }, ports: [{ name: http, port: 80 }] }\n", i, offered(i)))
}

func offered(i int) string { return fmt.Sprintf("10.96.%d.%d", 3+i/200, 1+i%200) }

func sidecar(name string) translate.Node {
	return translate.Node{Type: translate.Sidecar, Name: name, Namespace: "red", Workload: "w", Account: "default", Domain: "cluster.local",
		Address: model.DefaultSettings("one").Services.Addr(), Labels: map[string]string{"app": "w"}, Heddle: true}
}

// come connects a proxy, which has nothing from before if it is fresh.
func (p *Pusher) come(t *testing.T, node translate.Node, fresh bool) *xds.Proxy {
	t.Helper()
	proxy := &xds.Proxy{}
	if err := p.Attach(proxy, node.Proto(), fresh, func([]*xds.Group) {}); err != nil {
		t.Fatal(err)
	}
	return proxy
}

// holds says which services a proxy has clusters for, and how many bytes all of its resources are.
func (p *Pusher) holds(t *testing.T, proxy *xds.Proxy) (hosts []string, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.proxies[proxy].groups {
		for _, r := range g.group.Change(nil).Removed {
			m, err := r.Message()
			if err != nil {
				t.Fatal(err)
			}
			if bytes += proto.Size(m); r.Type() == xds.Clusters && strings.HasPrefix(r.Name(), "outbound|") {
				hosts = append(hosts, r.Name()[strings.LastIndexByte(r.Name(), '|')+1:strings.IndexByte(r.Name(), '.')])
			}
		}
	}
	slices.Sort(hosts)
	return hosts, bytes
}

func dependenciesIn(t *testing.T, dir string, now func() time.Time) *registry.Dependencies {
	t.Helper()
	d, err := registry.OpenDependencies(filepath.Join(dir, "dependencies.db"), now)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestProxiesLearnWhatTheyUse(t *testing.T) {
	dir, now := t.TempDir(), time.Unix(1000, 0)
	clock := func() time.Time { return now }
	kept := dependenciesIn(t, dir, clock)
	w, p := observing(t, 3), pusherWith(t, kept)
	w.update(p)
	has := func(p *Pusher, proxy *xds.Proxy, want ...string) {
		t.Helper()
		if got, _ := p.holds(t, proxy); !slices.Equal(got, want) {
			t.Fatalf("it has %q, want %q", got, want)
		}
	}
	first := p.come(t, sidecar("w-0"), true)
	has(p, first)
	p.Demand(first, []string{"*", offered(1) + "_80", "8.8.8.8_443", "nonsense", "1.2.3.4_99999"}, nil)
	has(p, first, "s-1")
	// What one learned, others of its workload have from the start; what nobody knows yet comes when it is there.
	p.Demand(first, []string{offered(3) + "_80"}, nil)
	second := p.come(t, sidecar("w-1"), true)
	has(p, second, "s-1")
	w.offer(3)
	w.update(p)
	has(p, first, "s-1", "s-3")
	has(p, second, "s-1", "s-3")
	// A running proxy that did not say what it used gets all, and so does one that never says.
	older := sidecar("w-2")
	has(p, p.come(t, older, false), "s-0", "s-1", "s-2", "s-3")
	stock := sidecar("w-3")
	stock.Heddle = false
	has(p, p.come(t, stock, true), "s-0", "s-1", "s-2", "s-3")

	// Another controller goes on, with what was kept.
	if err := errors.Join(kept.Save(), kept.Close()); err != nil {
		t.Fatal(err)
	}
	kept = dependenciesIn(t, dir, clock)
	next := pusherWith(t, kept)
	w.resend(next)
	again := next.come(t, sidecar("w-0"), true)
	has(next, again, "s-1", "s-3")
	// What is in use is not forgotten, the other is in the end.
	next.Demand(again, []string{offered(1) + "_80"}, nil)
	now = now.Add(30 * 24 * time.Hour)
	next.Forget()
	has(next, again, "s-1")
	next.Detach(again)
	now = now.Add(30 * 24 * time.Hour)
	next.Forget()
	has(next, next.come(t, sidecar("w-0"), true))
}

// One that was told to stop saying what it uses is not cut off from what it came to use meanwhile.
func TestAProxyThatStoppedSayingWhatItUsesGetsAll(t *testing.T) {
	w, p := observing(t, 2), pusherWith(t, noDependencies(t))
	w.update(p)
	proxy := p.come(t, sidecar("w-0"), true)
	for _, mode := range []string{"all", "observed"} {
		w.put("apiVersion: v1\nkind: Namespace\nmetadata: { name: red, labels: { heddle.io/dependencies: " + mode + " } }\n")
		w.update(p)
		if got, _ := p.holds(t, proxy); !slices.Equal(got, []string{"s-0", "s-1"}) {
			t.Errorf("%s: it has %q", mode, got)
		}
	}
}

func TestAWorkloadThatUsesManyGetsAll(t *testing.T) {
	w, p := observing(t, registry.MaxDependencies+2), pusherWith(t, noDependencies(t))
	w.update(p)
	proxy := p.come(t, sidecar("w-0"), true)
	var names []string
	for i := range registry.MaxDependencies + 1 {
		names = append(names, offered(i)+"_80")
	}
	p.Demand(proxy, names[:registry.MaxDependencies], nil)
	if got, _ := p.holds(t, proxy); len(got) != registry.MaxDependencies {
		t.Fatalf("it has %d", len(got))
	}
	p.Demand(proxy, names, nil)
	if got, _ := p.holds(t, proxy); len(got) != registry.MaxDependencies+2 {
		t.Fatalf("it has %d of all", len(got))
	}
}

// What a proxy has given up is kept no more, but as something that it used. While it asks for one listener of an address, a service that comes
// to be there is sent.
func TestWhatIsGivenUpIsForgotten(t *testing.T) {
	w, p := observing(t, 1), pusherWith(t, noDependencies(t))
	w.update(p)
	proxy := p.come(t, sidecar("w-0"), true)
	for round := range 10 {
		var names []string
		for i := range 1000 {
			names = append(names, fmt.Sprintf("8.%d.%d.%d_443", round, i>>8, i&255))
		}
		p.Demand(proxy, names, nil)
		p.Demand(proxy, nil, names)
	}
	p.Demand(proxy, []string{offered(0) + "_80", offered(1) + "_80", offered(1) + "_81", "nonsense"}, nil)
	p.Demand(proxy, nil, []string{offered(0) + "_80", offered(1) + "_80", "nonsense", "8.8.8.8_443"})
	if got := len(p.proxies[proxy].uses.destinations); got != 1 {
		t.Errorf("%d destinations are kept of one", got)
	}
	w.offer(1)
	w.update(p)
	if got, _ := p.holds(t, proxy); !slices.Equal(got, []string{"s-0", "s-1"}) {
		t.Errorf("it has %q", got)
	}
}

// Ten dependencies in a mesh of a thousand services: what a proxy is sent depends on what it uses.
func TestObservedDependenciesCostWhatIsUsed(t *testing.T) {
	w, p := observing(t, 1000), pusherWith(t, noDependencies(t))
	w.update(p)
	full := sidecar("v-0")
	full.Workload = ""
	_, all := p.holds(t, p.come(t, full, true))
	proxy := p.come(t, sidecar("w-0"), true)
	for i := range 10 {
		p.Demand(proxy, []string{offered(i) + "_80"}, nil)
	}
	hosts, some := p.holds(t, proxy)
	t.Logf("1000 services: %d bytes in full, %d bytes with %d dependencies", all, some, len(hosts))
	if len(hosts) != 10 || some*20 > all {
		t.Errorf("%d hosts in %d bytes of %d", len(hosts), some, all)
	}
}
