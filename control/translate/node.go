package translate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"heddle.io/heddle/control/model"
)

// NodeType is the first part of a node id.
type NodeType string

// Types of proxies, in Istio's words.
const (
	// Sidecar serves one workload's replica.
	Sidecar NodeType = "sidecar"
	// Router is a gateway.
	Router NodeType = "router"
)

// Node is a proxy.
type Node struct {
	Type      NodeType
	Address   netip.Addr
	Name      string
	Namespace string
	// Domain is the DNS domain of services, "cluster.local".
	Domain   string
	Workload string
	Account  string
	Labels   map[string]string
	Cluster  string
	// TrustDomain is the SPIFFE trust domain, told as MESH_ID.
	TrustDomain string
	Locality    model.Locality
	// Heddle says that the proxy is heddle-proxy, which has Istio's telemetry filters built in; a stock Envoy has not.
	Heddle bool
	// OnDemand says that the proxy asks for the listener of each destination that it has a connection for, and has done so
	// since it began.
	OnDemand bool
	// Version is the version of Istio whose configuration the proxy asks for, "1.31.1", told as ISTIO_VERSION; empty for none.
	Version string
	// Metadata are further texts of the node.
	Metadata map[string]string
}

// IstioVersion is the version of Istio's API that Heddle translates.
const IstioVersion = "1.31.1"

// ID is the xDS node id in Istio's form: type~address~name.namespace~namespace.svc.domain.
func (n Node) ID() string {
	return fmt.Sprintf("%s~%s~%s.%s~%s.svc.%s", n.Type, n.Address, n.Name, n.Namespace, n.Namespace, n.Domain)
}

// Metadata keys of nodes: Istio's, and HEDDLE_PROXY, "true" for heddle-proxy.
const (
	metaName      = "NAME"
	metaNamespace = "NAMESPACE"
	metaWorkload  = "WORKLOAD_NAME"
	metaAccount   = "SERVICE_ACCOUNT"
	metaCluster   = "CLUSTER_ID"
	metaMesh      = "MESH_ID"
	metaLabels    = "LABELS"
	metaAddresses = "INSTANCE_IPS"
	metaVersion   = "ISTIO_VERSION"
	metaHeddle    = "HEDDLE_PROXY"
)

// FeatureOnDemand is among the client features of a node for [Node.OnDemand].
const FeatureOnDemand = "heddle.on_demand"

// ownMetadata are the keys that a [Node] has fields for.
var ownMetadata = []string{
	metaName, metaNamespace, metaWorkload, metaAccount, metaCluster, metaMesh, metaLabels, metaAddresses, metaVersion, metaHeddle,
}

// Proto is the node as a proxy introduces itself.
func (n Node) Proto() *corev3.Node {
	text := structpb.NewStringValue
	labels := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for k, v := range n.Labels {
		labels.Fields[k] = text(v)
	}
	meta := map[string]*structpb.Value{
		metaName: text(n.Name), metaNamespace: text(n.Namespace), metaWorkload: text(n.Workload),
		metaAccount: text(n.Account), metaCluster: text(n.Cluster), metaMesh: text(n.TrustDomain),
		metaLabels: structpb.NewStructValue(labels), metaAddresses: text(n.Address.String()),
	}
	if n.Heddle {
		meta[metaHeddle] = text("true")
	}
	if n.Version != "" {
		meta[metaVersion] = text(n.Version)
	}
	for k, v := range n.Metadata {
		if meta[k] == nil {
			meta[k] = text(v)
		}
	}
	out := &corev3.Node{
		Id:       n.ID(),
		Cluster:  model.CanonicalName(n.Labels, n.Workload) + "." + n.Namespace,
		Metadata: &structpb.Struct{Fields: meta},
	}
	if n.Locality != (model.Locality{}) {
		out.Locality = &corev3.Locality{
			Region: n.Locality.Region, Zone: n.Locality.Zone, SubZone: n.Locality.SubZone,
		}
	}
	return out
}

// ParseNode reads a node as its proxy, or the agent for it, introduced it.
func ParseNode(p *corev3.Node) (Node, error) {
	parts := strings.Split(p.GetId(), "~")
	if len(parts) != 4 {
		return Node{}, fmt.Errorf("node id %q is not of the form type~address~name.namespace~domain", p.GetId())
	}
	n := Node{Type: NodeType(parts[0])}
	if n.Type != Sidecar && n.Type != Router {
		return Node{}, fmt.Errorf("node id %q: type %q is neither %s nor %s", p.GetId(), parts[0], Sidecar, Router)
	}
	var err error
	if n.Address, err = netip.ParseAddr(parts[1]); err != nil {
		return Node{}, fmt.Errorf("node id %q: %w", p.GetId(), err)
	}
	cut := strings.LastIndexByte(parts[2], '.')
	if cut <= 0 || cut == len(parts[2])-1 {
		return Node{}, fmt.Errorf("node id %q: %q is not of the form name.namespace", p.GetId(), parts[2])
	}
	n.Name, n.Namespace = parts[2][:cut], parts[2][cut+1:]
	if n.Domain = strings.TrimPrefix(parts[3], n.Namespace+".svc."); n.Domain == "" || n.Domain == parts[3] {
		return Node{}, fmt.Errorf("node id %q: domain %q is not of the form %s.svc.<domain>", p.GetId(), parts[3], n.Namespace)
	}
	fields := p.GetMetadata().GetFields()
	n.Workload = fields[metaWorkload].GetStringValue()
	n.Account = fields[metaAccount].GetStringValue()
	n.Cluster = fields[metaCluster].GetStringValue()
	n.TrustDomain = fields[metaMesh].GetStringValue()
	n.Heddle = fields[metaHeddle].GetStringValue() == "true"
	n.OnDemand = n.Heddle && n.Workload != "" && slices.Contains(p.GetClientFeatures(), FeatureOnDemand)
	n.Version = fields[metaVersion].GetStringValue()
	for k, v := range fields {
		if further := v.GetStringValue(); further != "" && !slices.Contains(ownMetadata, k) {
			if n.Metadata == nil {
				n.Metadata = map[string]string{}
			}
			n.Metadata[k] = further
		}
	}
	n.Labels = map[string]string{}
	for k, v := range fields[metaLabels].GetStructValue().GetFields() {
		n.Labels[k] = v.GetStringValue()
	}
	if l := p.GetLocality(); l != nil {
		n.Locality = model.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.SubZone}
	}
	return n, nil
}
