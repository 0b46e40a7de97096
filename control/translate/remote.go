package translate

import (
	"cmp"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"heddle.io/heddle/control/model"
)

// Bounds on what other clusters tell: the weights of all endpoints together must fit into 32 bits.
const (
	// maxShares bounds the common multiple of the numbers of gateways; with more, shares are rounded.
	maxShares = 60
	// maxRemoteReady bounds the endpoints that another cluster counts for.
	maxRemoteReady = 1 << 20
)

// How soon the loss of a link between clusters is noticed where nothing resets connections: within four seconds.
const (
	remoteConnectTimeout = 3 * time.Second
	pingInterval         = 2 * time.Second
	pingTimeout          = 2 * time.Second
)

// keepalive probes a silent connection after a second, and gives it up when two probes in a row, a second apart, are not
// answered (tcp(7)).
func keepalive() *corev3.TcpKeepalive {
	return &corev3.TcpKeepalive{KeepaliveTime: count(1), KeepaliveInterval: count(1), KeepaliveProbes: count(2)}
}

// meshTLS says whether clients speak the mesh's mutual TLS. Nothing else passes between clusters: the gateways go by
// its server name, and it is what keeps the traffic secret on the way.
func meshTLS(t *model.ClientTLS) bool { return t == nil || t.Mode == model.TLSMesh }

// usableRemotes are the other clusters that have ready endpoints of a port (and subset) behind gateways that answer.
func usableRemotes(s *model.Service, port uint16, labels map[string]string) []model.Remote {
	var out []model.Remote
	for _, r := range s.Remote {
		if r.Reachable && len(r.Gateways) > 0 && r.Ready(port, labels) > 0 {
			out = append(out, r)
		}
	}
	return out
}

// gatewayShares is how many parts one endpoint's weight is cut into, so that the gateways of a cluster, however many,
// together weigh as much as the endpoints behind them.
func gatewayShares(remotes []model.Remote) uint32 {
	shares := 1
	for _, r := range remotes {
		a, b := shares, len(r.Gateways)
		for b != 0 {
			a, b = b, a%b
		}
		shares = min(shares/a*len(r.Gateways), maxShares)
	}
	return uint32(shares)
}

// remoteEndpoints are a cluster's gateways, which stand for its ready endpoints.
func (g *generator) remoteEndpoints(r *model.Remote, ready uint64, shares, priority uint32) *endpointv3.LocalityLbEndpoints {
	weight := uint32(max(min(ready, maxRemoteReady)*uint64(shares)/uint64(len(r.Gateways)), 1))
	l := r.Locality
	l.Zone = cmp.Or(l.Zone, r.Cluster)
	out := &endpointv3.LocalityLbEndpoints{Locality: locality(l), Priority: priority}
	total := uint32(0)
	for _, gateway := range r.Gateways {
		meta := workloadMetadata("", "", "", "", r.Cluster)
		meta[metadataSocketMatch] = socketMatch(tlsModeKey, tlsModeMesh)
		out.LbEndpoints = append(out.LbEndpoints, lbEndpoint(socketAddress(gateway.Addr().String(), gateway.Port()), weight, meta))
		total += weight
	}
	out.LoadBalancingWeight = count(total)
	return out
}
