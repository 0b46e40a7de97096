package push

import (
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// renewEndpoints makes the endpoints anew of services whose replicas changed. All that may differ is whether a replica is ready,
// where it is, and its locality: then nothing changes but the endpoints of the services that select it.
func (p *Pusher) renewEndpoints(d *model.Difference) []xds.Change {
	// renewed are resources in force and what is to take their place.
	renewed := map[*xds.Resource]*xds.Resource{}
	for _, s := range d.Services {
		for _, a := range p.cache.Assign(p.mesh, s.Before, s.After) {
			for _, was := range p.packed[a.Before] {
				now, err := xds.NewResource(xds.Endpoints, a.After.ClusterName, a.After, was.cluster)
				if err != nil {
					p.log.Error("proxies keep their endpoints: the new ones could not be made", "error", err)
					p.metrics.failures.Inc()
					continue
				}
				p.packed[a.After] = append(p.packed[a.After], packed{resource: now, cluster: was.cluster})
				renewed[was.resource] = now
			}
			delete(p.packed, a.Before)
		}
	}
	var changes []xds.Change
	for _, g := range p.groups {
		if g.kind.Role == translate.Inbound {
			continue // Servers have no endpoints.
		}
		change := xds.Change{Group: g.group, Failure: g.group.Failed()}
		for was, now := range renewed {
			// Each group has the endpoints under the policy that holds for it.
			if g.group.Resource(xds.Endpoints, was.Name()) == was {
				change.Set = append(change.Set, now)
			}
		}
		if len(change.Set) > 0 {
			changes = append(changes, change)
		}
	}
	return changes
}
