package translate

import (
	"maps"

	"heddle.io/heddle/control/translate/patch"
)

// crowd is how many parts may be made, beside as many as there are, before those that are of no use any more are looked for.
const crowd = 10000

// Crowded says that many parts have been made since [Cache.Sweep], and most of what is kept may be of no use any more.
func (c *Cache) Crowded() bool { return c.misses > crowd+c.swept || c.patches.Crowded() }

// Mark has [Cache.Sweep] keep what patches made of the resources that are asked for from here on ([Kept.Resources]).
func (c *Cache) Mark() { c.patches.Mark() }

// Sweep forgets the parts that none of these has: what is kept, whose resources have been asked for since [Cache.Mark], and what servers
// were made, by the IDs of their kinds. It makes nothing anew.
func (c *Cache) Sweep(kept []Kept, servers map[string]*Resources) {
	used := map[any]bool{}
	var sets []*patch.Set
	for _, one := range kept {
		one.parts(func(part any) { used[part] = true })
		if p := one.common().patched; p != nil && p.set != nil {
			sets = append(sets, p.set)
		}
	}
	for _, r := range servers {
		plain := r
		if r.plain != nil {
			plain = r.plain
		}
		plain.eachPart(func(part any) { used[part] = true })
		for _, p := range r.patched {
			if p.set != nil {
				sets = append(sets, p.set)
				p.set.Use(plain.Clusters, plain.Listeners, plain.Routes)
			}
		}
	}
	c.patches.Sweep(sets)
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
	maps.DeleteFunc(c.servers, func(kind string, _ *memory[*Resources]) bool { return servers[kind] == nil })
	c.swept += len(c.servers)
	c.misses = 0
}

// sweep forgets what is not used, and says how many are left.
func (of memories[K, V]) sweep(used map[any]bool) int {
	maps.DeleteFunc(of, func(_ K, m *memory[V]) bool { return !used[m.value] })
	return len(of)
}

func (c *Client) parts(visit func(any)) {
	c.fixed.eachPart(visit)
	c.eachPart(visit)
	for _, t := range c.tables {
		visit(t.listener)
	}
}

// eachPart are what a cache may have made of the resources.
func (r *Resources) eachPart(visit func(any)) {
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
