package xds

import (
	"fmt"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/control/peer"
)

// held are the bytes of names that a stream has by its own word, wherever they are kept.
func (c *talk) held() int {
	bytes := 0
	for _, sub := range c.p.types {
		for _, kept := range []map[string]bool{sub.names.said, sub.dirty.said, sub.refused.names.said} {
			for name := range kept {
				bytes += len(name)
			}
		}
		for name := range sub.owed {
			if !sub.names.has(name) {
				bytes += len(name)
			}
		}
		for _, name := range sub.batch {
			bytes += len(name)
		}
	}
	return bytes
}

// TestAHostileProxyNamesABoundedPartOfTheController: however a proxy names what there is none of, the stream ends before the names
// take more than they may.
func TestAHostileProxyNamesABoundedPartOfTheController(t *testing.T) {
	long := func(i int) string { return fmt.Sprint(i, strings.Repeat("a", peer.MaxName-16)) }
	delta := func(c *talk, typ Type, r *discovery.DeltaDiscoveryRequest) error { return c.p.deltaRequest(typ, r) }
	subscribe := func(c *talk, typ Type, name string) error {
		return delta(c, typ, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{name}})
	}
	unsubscribe := func(c *talk, typ Type, name string) error {
		return delta(c, typ, &discovery.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: []string{name}})
	}
	for _, attack := range []struct {
		name string
		// step is the attack's i-th.
		step func(c *talk, i int) error
	}{
		{"subscribes", func(c *talk, i int) error { return subscribe(c, Endpoints, long(i)) }},
		{"subscribes to all types", func(c *talk, i int) error { return subscribe(c, Type(i%int(typeCount)), long(i)) }},
		{"names beside all others, and takes it back", func(c *talk, i int) error {
			if err := subscribe(c, Clusters, long(i)); err != nil {
				return err
			}
			return unsubscribe(c, Clusters, long(i))
		}},
		{"does so with many types, and leaves the answers unanswered", func(c *talk, i int) error {
			typ := []Type{Clusters, Secrets, Routes}[i/1000%3]
			if i < 3 {
				if err := subscribe(c, []Type{Clusters, Secrets, Routes}[i], everything); err != nil {
					return err
				}
			}
			if err := subscribe(c, typ, long(i)); err != nil {
				return err
			}
			if i%1000 == 999 {
				c.p.next()
			}
			return unsubscribe(c, typ, long(i))
		}},
		{"refuses to hear that there is none", func(c *talk, i int) error {
			if err := subscribe(c, Listeners, long(i)); err != nil {
				return err
			}
			if err := unsubscribe(c, Listeners, long(i)); err != nil {
				return err
			}
			for {
				r, _ := c.p.next()
				if r == nil {
					return nil
				}
				if err := delta(c, r.typ, &discovery.DeltaDiscoveryRequest{ResponseNonce: r.nonce, ErrorDetail: &rpcstatus.Status{Message: "no"}}); err != nil {
					return err
				}
			}
		}},
		{"says that it had them", func(c *talk, i int) error {
			known := map[string]string{}
			for j := range 1000 {
				known[long(1000*i+j)] = "1"
			}
			c.p.types[Clusters].asked = false
			return delta(c, Clusters, &discovery.DeltaDiscoveryRequest{InitialResourceVersions: known})
		}},
		{"names some of all, then others", func(c *talk, i int) error {
			names := []string{everything}
			for j := range 1000 {
				names = append(names, long(1000*i+j))
			}
			if err := c.p.wholeRequest(Secrets, &discovery.DiscoveryRequest{ResourceNames: names, ResponseNonce: c.p.types[Secrets].nonce}); err != nil {
				return err
			}
			if c.held() < 2*maxNameBytes && i == 5 {
				return status.Error(codes.ResourceExhausted, "as many as one request has")
			}
			return nil
		}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			_, c := connected(t, "a")
			for i := range 4 * maxNameBytes / peer.MaxName {
				err := attack.step(c, i)
				if held := c.held(); held > 2*maxNameBytes {
					t.Fatalf("after %d names of %d bytes, the controller holds %d bytes of them", i+1, peer.MaxName, held)
				}
				if err != nil {
					if status.Code(err) != codes.ResourceExhausted {
						t.Errorf("after %d names: %v", i+1, err)
					}
					return
				}
			}
		})
	}
}

func TestNamesAreBounded(t *testing.T) {
	many := func(n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprint(i))
		}
		return names
	}
	tooLong := strings.Repeat("a", peer.MaxName+1)
	for what, request := range map[string]func(p *Proxy) error{
		"more names than a stream may have": func(p *Proxy) error {
			if err := p.deltaRequest(Endpoints, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: many(maxNames - 2)}); err != nil {
				t.Errorf("as many as a stream may have: %v", err)
			}
			return p.deltaRequest(Secrets, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: many(3)})
		},
		"more listeners than a stream may name": func(p *Proxy) error {
			if err := p.deltaRequest(Listeners, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: many(maxListeners)}); err != nil {
				t.Errorf("as many as a stream may name: %v", err)
			}
			return p.deltaRequest(Listeners, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: many(maxListeners + 1)})
		},
		"a long name": func(p *Proxy) error {
			return p.deltaRequest(Endpoints, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{tooLong}})
		},
		"a long name of what it says it has": func(p *Proxy) error {
			return p.deltaRequest(Secrets, &discovery.DeltaDiscoveryRequest{InitialResourceVersions: map[string]string{tooLong: "1"}})
		},
		"a long name in the state of the world": func(p *Proxy) error {
			return p.wholeRequest(Secrets, &discovery.DiscoveryRequest{ResourceNames: []string{tooLong}})
		},
		"more names than may be in the state of the world": func(p *Proxy) error {
			return p.wholeRequest(Secrets, &discovery.DiscoveryRequest{ResourceNames: many(maxNames)})
		},
	} {
		t.Run(what, func(t *testing.T) {
			w, c := connected(t, "a")
			if err := request(c.p); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%v", err)
			}
			if n := counted(t, w.server.metrics.namesRefused, ""); n != 1 {
				t.Errorf("%v streams are counted", n)
			}
		})
	}
}

// TestNamesThatWereGivenBackAreFree: the bound is on what is held, not on what was ever said.
func TestNamesThatWereGivenBackAreFree(t *testing.T) {
	_, c := connected(t, "a")
	for i := range 3 {
		var names []string
		for j := range maxListeners {
			names = append(names, fmt.Sprint(i, ".", j))
		}
		c.request(Listeners, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: names})
		c.request(Listeners, &discovery.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: names})
		for {
			r, _ := c.p.next()
			if r == nil {
				break
			}
			c.request(r.typ, &discovery.DeltaDiscoveryRequest{ResponseNonce: r.nonce})
		}
	}
	// What it was connected with stays.
	if want := len("a") + len("80"); c.held() != want {
		t.Errorf("%d bytes of names are held, want %d", c.held(), want)
	}
	if got := c.p.types[Listeners].dirty.tally; got != (tally{}) {
		t.Errorf("none is left, and the tally is %+v", got)
	}
}
