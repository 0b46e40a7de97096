package translate

import (
	"maps"

	"heddle.io/heddle/control/translate/patch"
)

// crowd is how many parts may be made, beside as many as there are, before those that are of no use any more are looked for.
const crowd = 10000

// Crowded says that many parts have been made since [Cache.Sweep], and most of what is kept may be of no use any more.
func (c *Cache) Crowded() bool { return c.misses > crowd+c.swept || c.patches.Crowded() }

// Sweep forgets the parts that none of these has: the clients, and what other kinds were made, by their IDs. It makes nothing
// anew.
func (c *Cache) Sweep(clients []*Client, others map[string]*Resources) {
	used := map[any]bool{}
	var sets []*patch.Set
	patched := func(p *patched) bool {
		if p == nil || p.set == nil {
			return false
		}
		sets = append(sets, p.set)
		return true
	}
	var ask []func()
	for _, client := range clients {
		client.parts(func(part any) { used[part] = true })
		if patched(client.patched) {
			ask = append(ask, func() { client.Resources() })
		}
	}
	for _, r := range others {
		plain := r
		if r.plain != nil {
			plain = r.plain
		}
		plain.eachPart(func(part any) { used[part] = true })
		for _, p := range r.patched {
			if patched(p) {
				ask = append(ask, func() { p.existing(plain) })
			}
		}
	}
	c.patches.Sweep(sets, func() {
		for _, one := range ask {
			one()
		}
	})
	c.swept = 0
	for host, of := range c.clusters {
		if c.swept += of.sweep(used); len(of) == 0 {
			delete(c.clusters, host)
		}
	}
	for host, of := range c.hosts {
		if c.swept += of.sweep(used); len(of) == 0 {
			delete(c.hosts, host)
		}
	}
	c.swept += c.listeners.sweep(used) + c.fixed.sweep(used) + c.anchors.sweep(used)
	maps.DeleteFunc(c.servers, func(kind string, _ *memory[*Resources]) bool { return others[kind] == nil })
	c.swept += len(c.servers)
	c.misses = 0
}

// sweep forgets what is not used, and says how many are left.
func (of memories[K, V]) sweep(used map[any]bool) int {
	maps.DeleteFunc(of, func(_ K, m *memory[V]) bool { return !used[m.value] })
	return len(of)
}

// parts are what a cache has made for the client, before patches.
func (c *Client) parts(visit func(any)) {
	c.fixed.eachPart(visit)
	for _, s := range c.shares {
		for _, p := range s.clusters {
			visit(p)
		}
		for _, l := range s.listeners {
			visit(l)
		}
		for _, h := range s.hosts {
			visit(h)
		}
	}
	for _, t := range c.tables {
		visit(t.listener)
	}
	for _, a := range c.anchors {
		visit(a.secret)
	}
}

// eachPart are what a cache may have made of the resources.
func (r *Resources) eachPart(visit func(any)) {
	for _, p := range r.parts {
		visit(p)
	}
	for _, c := range r.Clusters {
		visit(c)
	}
	for _, l := range r.Listeners {
		visit(l)
	}
	for _, s := range r.Secrets {
		visit(s)
	}
	for _, t := range r.Routes {
		for _, h := range t.VirtualHosts {
			visit(h)
		}
	}
}
