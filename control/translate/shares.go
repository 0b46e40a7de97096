package translate

import (
	"maps"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// base is what a [Client] and a [Gateway] have in common.
type base struct {
	shares
	kind Kind
	// fixed is what no share brings.
	fixed *Resources
	// filters is the fingerprint of those HTTP filters that routes ask for: with others, all is made anew.
	filters string
	// patched is what patches make of it, nil for none.
	patched *patched
}

// Patches implements [Kept].
func (b *base) Patches() []PatchState { return b.patched.counted() }

func (b *base) common() *base { return b }

func (b *base) plain() *Resources {
	out := &Resources{}
	out.take(b.fixed)
	for _, p := range b.clusters {
		out.addCluster(p.value)
	}
	for _, a := range b.anchors {
		out.Secrets = append(out.Secrets, a.secret)
	}
	for _, l := range b.listeners {
		out.Listeners = append(out.Listeners, l.value)
	}
	return out
}

// all makes of what there is without patches what there is.
func (b *base) all(plain *Resources) *Resources {
	plain.sources = make(map[objects.Key]bool, len(b.fixed.sources)+len(b.sources))
	maps.Copy(plain.sources, b.fixed.sources)
	for key := range b.sources {
		plain.sources[key] = true
	}
	b.patched.all(plain)
	return plain
}

func (b *base) fork(k Kind) base {
	return base{shares: b.clone(), kind: k, fixed: b.fixed, filters: b.filters, patched: b.patched}
}

// shares are the parts that a configuration is put together of. A cluster or a listener that several of them have is there once:
// who makes some shares anew hears what that changes in the whole.
type shares struct {
	by map[string]*share
	// readers are the shares that were made of a service, by its host; a service's own is not among them.
	readers map[string]map[string]bool
	// clusters and listeners by name, with how many shares have them.
	clusters  map[string]counted[*clusterPart]
	listeners map[string]counted[*listenerv3.Listener]
	// anchors are the secrets that the clusters name, by name.
	anchors map[string]anchored
	// sources are the objects that have a part in it, with the number of shares.
	sources map[objects.Key]int
}

func newShares() shares {
	return shares{
		by: map[string]*share{}, readers: map[string]map[string]bool{}, clusters: map[string]counted[*clusterPart]{},
		listeners: map[string]counted[*listenerv3.Listener]{}, anchors: map[string]anchored{}, sources: map[objects.Key]int{},
	}
}

// share is what one service brings to clients, or one virtual host to gateways.
type share struct {
	clusters  []*clusterPart
	listeners []*listenerv3.Listener
	// reads are the hosts of services that it was made of, sources the objects.
	reads   []string
	sources []objects.Key

	// Of a client: the service, its virtual hosts by port, and its chains of listeners on all addresses; foreign are the virtual hosts
	// of the share that stands for no service.
	service *model.Service
	hosts   map[uint16]*routev3.VirtualHost
	chains  map[uint16][]*listenerv3.FilterChain
	foreign []*routev3.VirtualHost

	// Of a gateway: the virtual host and its place, none for the share of listeners.
	edge *routev3.VirtualHost
	at   edgePlace
}

type counted[T any] struct {
	value T
	count int
}

// exchange takes note of shares that are made anew, nil for one that is gone, and of the secrets with these anchors. The shares
// themselves stay as they were until [shares.replace].
func (s *shares) exchange(g *generator, made map[string]*share, anchors []*model.Anchors, delta *Delta) {
	clusters, listeners := map[string]*clusterPart{}, map[string]*listenerv3.Listener{}
	sources := map[objects.Key]bool{}
	for host := range made {
		old := s.by[host]
		if old == nil {
			continue
		}
		for _, p := range old.clusters {
			release(s.clusters, clusters, p.cluster.Name)
		}
		for _, l := range old.listeners {
			release(s.listeners, listeners, l.Name)
		}
		for _, key := range old.sources {
			if s.sources[key]--; s.sources[key] == 0 {
				sources[key] = true
			}
		}
		for _, read := range old.reads {
			if delete(s.readers[read], host); len(s.readers[read]) == 0 {
				delete(s.readers, read)
			}
		}
	}
	for host, now := range made {
		if now == nil {
			continue
		}
		for _, p := range now.clusters {
			acquire(s.clusters, clusters, p.cluster.Name, p)
		}
		for _, l := range now.listeners {
			acquire(s.listeners, listeners, l.Name, l)
		}
		for _, key := range now.sources {
			if s.sources[key]++; s.sources[key] == 1 {
				if sources[key] {
					delete(sources, key)
				} else {
					delta.Added = append(delta.Added, key)
				}
			}
		}
		for _, read := range now.reads {
			if s.readers[read] == nil {
				s.readers[read] = map[string]bool{}
			}
			s.readers[read][host] = true
		}
	}
	for key := range sources {
		delete(s.sources, key)
		delta.Dropped = append(delta.Dropped, key)
	}
	for name, was := range clusters {
		if now := s.clusters[name]; now.count == 0 {
			delete(s.clusters, name)
			delta.Clusters = append(delta.Clusters, name)
		} else if now.value != was {
			if delta.Set.addCluster(now.value); now.value.endpoints == nil {
				delta.Endpoints = append(delta.Endpoints, name)
			}
		}
	}
	for name, was := range listeners {
		if now := s.listeners[name]; now.count == 0 {
			delete(s.listeners, name)
			delta.Listeners = append(delta.Listeners, name)
		} else if now.value != was {
			delta.Set.Listeners = append(delta.Set.Listeners, now.value)
		}
	}
	s.settleAnchors(g, made, anchors, delta)
}

// replace puts shares in the place of those before, nil for one that is gone.
func (s *shares) replace(made map[string]*share) {
	for name, now := range made {
		if delete(s.by, name); now != nil {
			s.by[name] = now
		}
	}
}

// clone gives shares that can be changed by themselves.
func (s *shares) clone() shares {
	out := shares{
		by: maps.Clone(s.by), readers: make(map[string]map[string]bool, len(s.readers)), clusters: maps.Clone(s.clusters),
		listeners: maps.Clone(s.listeners), anchors: maps.Clone(s.anchors), sources: maps.Clone(s.sources),
	}
	for host, readers := range s.readers {
		out.readers[host] = maps.Clone(readers)
	}
	return out
}

// eachPart visits what a cache has made for the shares.
func (s *shares) eachPart(visit func(any)) {
	for _, one := range s.by {
		for _, p := range one.clusters {
			visit(p)
		}
		for _, l := range one.listeners {
			visit(l)
		}
		for _, h := range one.hosts {
			visit(h)
		}
		if one.edge != nil {
			visit(one.edge)
		}
	}
	for _, a := range s.anchors {
		visit(a.secret)
	}
}

// release takes one off the number of shares that have a cluster or a listener. What there was before the first change of its name
// is noted.
func release[T any](all map[string]counted[T], noted map[string]T, name string) {
	one := all[name]
	if _, known := noted[name]; !known {
		noted[name] = one.value
	}
	one.count--
	all[name] = one
}

func acquire[T any](all map[string]counted[T], noted map[string]T, name string, value T) {
	one := all[name]
	if _, known := noted[name]; !known {
		noted[name] = one.value
	}
	all[name] = counted[T]{value, one.count + 1}
}

// begin has what is made from here on belong to a share.
func (g *generator) begin() {
	g.out, g.parts, g.chains = newResources(), nil, nil
	clear(g.clusters)
	clear(g.reads)
}

func (g *generator) end(s *share) {
	s.clusters, s.listeners, s.chains = g.parts, g.out.Listeners, g.chains
	s.sources = slices.Collect(maps.Keys(g.out.sources))
	for host := range g.reads {
		if s.service == nil || host != s.service.Host {
			s.reads = append(s.reads, host)
		}
	}
}
