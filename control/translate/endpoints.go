package translate

import (
	"cmp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"heddle.io/heddle/control/model"
)

// Endpoint metadata by which a cluster chooses the transport socket.
const (
	metadataSocketMatch = "envoy.transport_socket_match"
	tlsModeKey          = "tlsMode"
	tlsModeMesh         = "istio"
)

// endpoints lists where a port of a service (and subset) is reached: the ready replicas of this cluster by locality, and
// behind them, or beside them when the traffic is to be spread, the gateways of the clusters that can be reached.
func (g *generator) endpoints(cluster string, s *model.Service, p model.ServicePort, labels map[string]string, rules model.PortPolicy) *endpointv3.ClusterLoadAssignment {
	var remotes []model.Remote
	if meshTLS(rules.TLS) {
		remotes = usableRemotes(s, p.Number, labels)
	}
	weight, shares := uint32(1), gatewayShares(remotes)
	if s.Spread {
		// A replica here has the weight of one there.
		weight = shares
	}
	out := &endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: g.localEndpoints(s, p, labels, weight)}
	priority := uint32(0)
	if !s.Spread && len(out.Endpoints) > 0 {
		// Priorities have no gaps (Envoy's LocalityLbEndpoints.priority): without local endpoints, remote ones are first.
		priority = 1
	}
	for i := range remotes {
		out.Endpoints = append(out.Endpoints, g.remoteEndpoints(&remotes[i], remotes[i].Ready(p.Number, labels), shares, priority))
	}
	return out
}

func (g *generator) localEndpoints(s *model.Service, p model.ServicePort, labels map[string]string, weight uint32) []*endpointv3.LocalityLbEndpoints {
	byLocality, weights := map[model.Locality][]*endpointv3.LbEndpoint{}, map[model.Locality]uint32{}
	for _, r := range s.Replicas {
		if !r.Ready || !model.Selects(labels, r.Labels) {
			continue
		}
		if port, ok := p.TargetOn(r); ok {
			of := weight * max(r.Weight, 1)
			byLocality[r.Locality] = append(byLocality[r.Locality], g.endpoint(s, r, port, of))
			weights[r.Locality] += of
		}
	}
	localities := make([]model.Locality, 0, len(byLocality))
	for l := range byLocality {
		localities = append(localities, l)
	}
	slices.SortFunc(localities, func(a, b model.Locality) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.SubZone, b.SubZone))
	})
	out := make([]*endpointv3.LocalityLbEndpoints, 0, len(localities))
	for _, l := range localities {
		out = append(out, &endpointv3.LocalityLbEndpoints{
			Locality: locality(l), LbEndpoints: byLocality[l], LoadBalancingWeight: count(weights[l]),
		})
	}
	return out
}

func locality(l model.Locality) *corev3.Locality {
	if l == (model.Locality{}) {
		return nil
	}
	return &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.SubZone}
}

func (g *generator) endpoint(s *model.Service, r *model.Replica, port uint16, weight uint32) *endpointv3.LbEndpoint {
	meta := workloadMetadata(r.Workload, r.Namespace, r.CanonicalName(), r.CanonicalRevision(), r.Cluster)
	if s.MeshEndpoints() && g.mesh.MutualTLS(r, port) {
		meta[metadataSocketMatch] = socketMatch(tlsModeKey, tlsModeMesh)
	}
	return lbEndpoint(socketAddress(r.Address.String(), port), weight, meta)
}

func lbEndpoint(address *corev3.Address, weight uint32, meta map[string]*structpb.Struct) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{
		HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
		LoadBalancingWeight: count(weight),
		Metadata:            &corev3.Metadata{FilterMetadata: meta},
	}
}

// workloadMetadata names what is behind an endpoint, for telemetry, in Istio's compact form: workload;namespace;canonical
// name;canonical revision;cluster.
func workloadMetadata(parts ...string) map[string]*structpb.Struct {
	return map[string]*structpb.Struct{"istio": {Fields: map[string]*structpb.Value{
		"workload": structpb.NewStringValue(strings.Join(parts, ";")),
	}}}
}

func socketMatch(key, value string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(value)}}
}
