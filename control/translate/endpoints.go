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

// endpoints lists the ready replicas of a service (and subset), by locality.
func (g *generator) endpoints(cluster string, s *model.Service, p model.ServicePort, labels map[string]string) *endpointv3.ClusterLoadAssignment {
	byLocality := map[model.Locality][]*endpointv3.LbEndpoint{}
	for _, r := range s.Replicas {
		if !r.Ready || !model.Selects(labels, r.Labels) {
			continue
		}
		port, ok := p.TargetOn(r)
		if !ok {
			continue
		}
		byLocality[r.Locality] = append(byLocality[r.Locality], g.endpoint(r, port))
	}
	localities := make([]model.Locality, 0, len(byLocality))
	for l := range byLocality {
		localities = append(localities, l)
	}
	slices.SortFunc(localities, func(a, b model.Locality) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.SubZone, b.SubZone))
	})
	out := &endpointv3.ClusterLoadAssignment{ClusterName: cluster}
	for _, l := range localities {
		group := &endpointv3.LocalityLbEndpoints{
			LbEndpoints:         byLocality[l],
			LoadBalancingWeight: count(uint32(len(byLocality[l]))),
		}
		if l != (model.Locality{}) {
			group.Locality = &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.SubZone}
		}
		out.Endpoints = append(out.Endpoints, group)
	}
	return out
}

func (g *generator) endpoint(r *model.Replica, port uint16) *endpointv3.LbEndpoint {
	meta := map[string]*structpb.Struct{"istio": {Fields: map[string]*structpb.Value{
		// Istio's compact form: workload;namespace;canonical name;canonical revision;cluster.
		"workload": structpb.NewStringValue(strings.Join([]string{
			r.Workload, r.Namespace, r.CanonicalName(), r.CanonicalRevision(), r.Cluster,
		}, ";")),
	}}}
	if mode, _ := g.mesh.InboundMode(r.Namespace, r.Labels, port); r.HasProxy && mode != model.MTLSDisable {
		meta[metadataSocketMatch] = &structpb.Struct{Fields: map[string]*structpb.Value{
			tlsModeKey: structpb.NewStringValue(tlsModeMesh),
		}}
	}
	return &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: socketAddress(r.Address.String(), port),
		}},
		LoadBalancingWeight: count(1),
		Metadata:            &corev3.Metadata{FilterMetadata: meta},
	}
}
