package patch

import (
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// Difference is the patches that two sets do not have in common, and those that may make these match. A resource with which none of them may
// have to do is the same with both.
type Difference struct {
	clusters, listeners, routes *part
}

// Since says what is different in a set from one before it; nil is a set without any patches.
func (s *Set) Since(was *Set) *Difference {
	if s == nil {
		s = &Set{}
	}
	if was == nil {
		was = &Set{}
	}
	return &Difference{s.clusters.since(was.clusters), s.listeners.since(was.listeners), s.routes.since(was.routes)}
}

func (p *part) since(was *part) *part {
	if p == was {
		return nil
	}
	if p == nil {
		p = &part{}
	}
	if was == nil {
		was = &part{}
	}
	return newPart(nil, p.gateway || was.gateway, unequal(was.patches, p.patches))
}

// unequal are the patches that only one of both has, with those of both that change what they go by; all of both, where those in common are
// in another order.
func unequal(x, y []*Patch) []*Patch {
	common, only := split(x, y)
	others, onlyOther := split(y, x)
	if !slices.Equal(common, others) {
		return slices.Concat(x, y)
	}
	out := slices.Concat(only, onlyOther)
	if len(out) == 0 {
		return nil
	}
	for _, p := range common {
		// What the others go by may be what this one makes.
		if p.ApplyTo == "LISTENER" && p.redefines() {
			out = append(out, p)
		}
	}
	return out
}

// split says which patches others have as well.
func split(patches, others []*Patch) (common, only []*Patch) {
	has := make(map[*Patch]bool, len(others))
	for _, p := range others {
		has[p] = true
	}
	for _, p := range patches {
		if has[p] {
			common = append(common, p)
		} else {
			only = append(only, p)
		}
	}
	return common, only
}

// Clusters says whether any cluster may differ; so do Listeners and Tables of theirs.
func (d *Difference) Clusters() bool { return d.clusters != nil }

// Listeners says whether any listener may differ.
func (d *Difference) Listeners() bool { return d.listeners != nil }

// Tables says whether any route table may differ.
func (d *Difference) Tables() bool { return d.routes != nil }

// Cluster says whether a cluster may differ.
func (d *Difference) Cluster(c *clusterv3.Cluster) bool {
	return d.clusters != nil && len(d.clusters.ofCluster(c)) > 0
}

// Listener says whether a listener may differ.
func (d *Difference) Listener(l *listenerv3.Listener) bool {
	return d.listeners != nil && len(d.listeners.ofListener(l)) > 0
}

// Table says whether a route table may differ.
func (d *Difference) Table(t *routev3.RouteConfiguration) bool {
	return d.routes != nil && !d.routes.table(t.GetName()).empty()
}
