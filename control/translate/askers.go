package translate

import (
	"maps"
	"slices"

	"heddle.io/heddle/control/model"
)

// askers are the routes and policies for which labels of a client make a difference, with the names of these: few among many.
type askers struct {
	routes map[*model.Routes][]string
	// policies by namespace: they hold for clients of their own.
	policies map[string]map[*model.DestinationPolicy][]string
}

// apply makes a change of the routes and the policies.
func (a *askers) apply(routes []model.Pair[model.Routes], policies []model.Pair[model.DestinationPolicy]) {
	for _, p := range routes {
		delete(a.routes, p.Before)
		if p.After == nil || !boundToMesh(p.After) {
			continue
		}
		if asked := askedByRoutes(p.After); len(asked) > 0 {
			if a.routes == nil {
				a.routes = map[*model.Routes][]string{}
			}
			a.routes[p.After] = asked
		}
	}
	for _, p := range policies {
		if p.Before != nil {
			if of := a.policies[p.Before.Namespace]; of != nil {
				if delete(of, p.Before); len(of) == 0 {
					delete(a.policies, p.Before.Namespace)
				}
			}
		}
		if p.After == nil || len(p.After.Clients) == 0 {
			continue
		}
		if a.policies == nil {
			a.policies = map[string]map[*model.DestinationPolicy][]string{}
		}
		if a.policies[p.After.Namespace] == nil {
			a.policies[p.After.Namespace] = map[*model.DestinationPolicy][]string{}
		}
		a.policies[p.After.Namespace][p.After] = slices.Collect(maps.Keys(p.After.Clients))
	}
}

// askedByRoutes are the labels of clients that routes look at.
func askedByRoutes(r *model.Routes) []string {
	var out []string
	for i := range r.HTTP {
		for _, m := range r.HTTP[i].Matches {
			out = slices.AppendSeq(out, maps.Keys(m.Scope.SourceLabels))
		}
	}
	for i := range r.TCP {
		for _, m := range r.TCP[i].Matches {
			out = slices.AppendSeq(out, maps.Keys(m.SourceLabels))
		}
	}
	return out
}

// labels are those of a sidecar that make a difference to it as a client.
func (a *askers) labels(node Node) map[string]string {
	out := map[string]string{}
	keep := func(asked []string) {
		for _, key := range asked {
			if value, ok := node.Labels[key]; ok {
				out[key] = value
			}
		}
	}
	for _, asked := range a.policies[node.Namespace] {
		keep(asked)
	}
	for r, asked := range a.routes {
		if r.ExportTo.In(node.Namespace) {
			keep(asked)
		}
	}
	return out
}
