package resolve

import "heddle.io/heddle/control/objects"

// Objects are worked out in this order: each stratum looks up what those before it make.
const (
	// stratumEndpoints has what stands beside the replicas that agents report.
	stratumEndpoints = iota
	stratumServices
	// stratumDestinations has the mesh's configuration too, whose providers policies name.
	stratumDestinations
	stratumPolicies
	stratumRoutes
	strata
)

// resolver works out what objects of a kind come to.
type resolver struct {
	kind    *objects.Kind
	stratum int
	// part of the mesh that an object makes, nil for none.
	part func(*builder, *objects.Object) any
}

// resolvers of the kinds that are worked out, in no order. Other kinds are said by being there (see [Model.declare]). A new
// kind is a file with what makes its part, and a line here.
var resolvers = []resolver{
	{objects.WorkloadEntry, stratumEndpoints, partOf((*builder).workloadEntry)},
	{objects.Service, stratumServices, partOf((*builder).service)},
	{objects.ServiceEntry, stratumServices, partOf((*builder).serviceEntry)},
	{objects.DestinationRule, stratumDestinations, partOf((*builder).destination)},
	{objects.ConfigMap, stratumDestinations, partOf((*builder).configMap)},
	{objects.BackendTLSPolicy, stratumDestinations, partOf((*builder).backendTLS)},
	{objects.Workload, stratumPolicies, saysOf((*builder).workload)},
	{objects.Gateway, stratumPolicies, partOf((*builder).gateway)},
	{objects.GatewayClass, stratumPolicies, saysOf((*builder).gatewayClass)},
	{objects.KubernetesGateway, stratumPolicies, partOf((*builder).kubernetesGateway)},
	{objects.Namespace, stratumPolicies, partOf((*builder).dependencies)},
	{objects.Sidecar, stratumPolicies, partOf((*builder).sidecar)},
	{objects.EnvoyFilter, stratumPolicies, partOf((*builder).envoyFilter)},
	{objects.PeerAuthentication, stratumPolicies, partOf((*builder).peerMode)},
	{objects.AuthorizationPolicy, stratumPolicies, partOf((*builder).access)},
	{objects.RequestAuthentication, stratumPolicies, partOf((*builder).authentication)},
	{objects.VirtualService, stratumRoutes, partOf((*builder).routes)},
	{objects.HTTPRoute, stratumRoutes, partOf((*builder).gatewayHTTPRoute)},
	{objects.GRPCRoute, stratumRoutes, partOf((*builder).gatewayGRPCRoute)},
	{objects.TLSRoute, stratumRoutes, partOf((*builder).tlsRoute)},
	{objects.TCPRoute, stratumRoutes, partOf((*builder).tcpRoute)},
}

// resolverOf are the resolvers by group and kind.
var resolverOf = byKind(resolvers)

type groupKind struct{ group, kind string }

func byKind(all []resolver) map[groupKind]resolver {
	out := make(map[groupKind]resolver, len(all))
	for _, r := range all {
		out[groupKind{r.kind.Group, r.kind.Kind}] = r
	}
	return out
}

// partOf is what makes the part of one type of resource, for any.
func partOf[R objects.Resource, P any](make func(*builder, *objects.Object, R) *P) func(*builder, *objects.Object) any {
	return func(b *builder, o *objects.Object) any {
		if r, ok := o.Resource.(R); ok {
			if part := make(b, o, r); part != nil {
				return part
			}
		}
		return nil
	}
}

// saysOf is for a type of resource that is no part of the mesh, and of which something is to be said.
func saysOf[R objects.Resource](say func(*builder, *objects.Object, R)) func(*builder, *objects.Object) any {
	return func(b *builder, o *objects.Object) any {
		if r, ok := o.Resource.(R); ok {
			say(b, o, r)
		}
		return nil
	}
}

// stratumOf says when objects of a kind are worked out.
func stratumOf(key objects.Key) int {
	if r, ok := resolverOf[groupKind{key.Group, key.Kind}]; ok {
		return r.stratum
	}
	return stratumPolicies
}
