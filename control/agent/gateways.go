package agent

import (
	"context"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
)

// Gateways are deployments with keys that are none of a workload.
const (
	gatewayKeys = "gateway:"
	ingressKey  = gatewayKeys + "ingress"
	eastWestKey = gatewayKeys + "eastwest"
)

// gatewayKind is one of the two that Istio installs: the name of the workload and what `istio:` says of it.
type gatewayKind struct{ workload, istio string }

// IngressGateway is the workload that lets requests in.
const IngressGateway = "istio-ingressgateway"

var (
	ingress  = gatewayKind{IngressGateway, "ingressgateway"}
	eastWest = gatewayKind{"istio-eastwestgateway", "eastwestgateway"}
)

func (g gatewayKind) labels() map[string]string {
	return map[string]string{"app": g.workload, "istio": g.istio}
}

// replicas of the gateway: proxies without an application.
func (g gatewayKind) replicas(count int, proxy string, provider *objects.KeyProvider) []replicaSpec {
	var specs []replicaSpec
	for i := range count {
		specs = append(specs, replicaSpec{
			Namespace: cluster.GatewayNamespace, Workload: g.workload, Name: g.workload + "-" + strconv.Itoa(i), Gateway: true,
			ServiceAccount: g.workload + "-service-account", Labels: g.labels(), ProxyPath: proxy, KeyProvider: provider,
		})
	}
	return specs
}

// gateways of a cluster, by the keys of their deployments; their own keys are used by the mesh's default provider.
func gateways(o cluster.Options, provider *objects.KeyProvider) map[string][]replicaSpec {
	return map[string][]replicaSpec{
		ingressKey:  ingress.replicas(1, o.GatewayProxy, provider),
		eastWestKey: eastWest.replicas(o.EastWestGateways, o.GatewayProxy, provider),
	}
}

// waysIn are the ports of the ingress gateway, as far as they are known.
type waysIn struct {
	// gateways are those of Gateway objects of Istio and of Gateway API, public those of the public services of global
	// namespaces.
	gateways, kubernetes, public []uint16
	// All kinds of objects must have been told, by the controller or by what the agent before kept: before, nothing that
	// is open may be closed.
	knowsGateways, knowsKubernetes, knowsPublic bool
}

// followGateways keeps the ports of Gateway objects that are for the ingress gateway.
func (a *Agent) followGateways(ctx context.Context) {
	a.follow(ctx, objects.Gateway, func(known map[objects.Key]*objects.Object, _ *objects.Key) {
		ports := gatewayPorts(known)
		a.mu.Lock()
		a.ways.gateways, a.ways.knowsGateways = ports, true
		a.mu.Unlock()
		a.reexpose()
	})
}

// followKubernetesGateways keeps the ports of the Gateways of Gateway API that are for the ingress gateway.
func (a *Agent) followKubernetesGateways(ctx context.Context) {
	a.follow(ctx, objects.KubernetesGateway, func(known map[objects.Key]*objects.Object, _ *objects.Key) {
		ports := listenerPorts(known)
		a.mu.Lock()
		a.ways.kubernetes, a.ways.knowsKubernetes = ports, true
		a.mu.Unlock()
		a.reexpose()
	})
}

// listenerPorts are those that the ingress gateway may serve: of which class a Gateway is, the controller knows.
func listenerPorts(known map[objects.Key]*objects.Object) []uint16 {
	var ports []uint16
	for _, o := range known {
		g, ok := o.Resource.(*gatewayv1.Gateway)
		if !ok || !resolve.ServedByIngress(g, cluster.Domain) {
			continue
		}
		for _, l := range g.Spec.Listeners {
			if l.Port > 0 && l.Port < 1<<16 {
				ports = append(ports, uint16(l.Port))
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

func gatewayPorts(known map[objects.Key]*objects.Object) []uint16 {
	labels := ingress.labels()
	var ports []uint16
	for _, o := range known {
		g, ok := o.Resource.(*networkingv1.Gateway)
		if !ok {
			continue
		}
		selects := model.Selects(g.Spec.GetSelector(), labels)
		for _, server := range g.Spec.GetServers() {
			if number := server.GetPort().GetNumber(); selects && number > 0 && number < 1<<16 {
				ports = append(ports, uint16(number))
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// followGlobalNamespaces keeps the ports of public services: those of HTTP, and of HTTPS where there is a certificate.
func (a *Agent) followGlobalNamespaces(ctx context.Context) {
	a.follow(ctx, objects.GlobalNamespace, func(known map[objects.Key]*objects.Object, _ *objects.Key) {
		ports := publicPorts(known, a.config.Cluster.Name)
		a.mu.Lock()
		a.ways.public, a.ways.knowsPublic = ports, true
		a.mu.Unlock()
		a.reexpose()
	})
}

// publicPorts are those of the global namespaces that a cluster belongs to: others' services are not public there.
func publicPorts(known map[objects.Key]*objects.Object, own string) []uint16 {
	var ports []uint16
	for _, o := range known {
		g, ok := o.Resource.(*v1alpha1.GlobalNamespace)
		if !ok || !slices.ContainsFunc(g.Spec.Mappings, func(m v1alpha1.NamespaceMapping) bool { return resolve.Covers(m.Cluster, own) }) {
			continue
		}
		for _, p := range g.Spec.PublicServices {
			if p.CredentialName != "" {
				ports = append(ports, 443)
			} else {
				ports = append(ports, 80)
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// exposures are what is to be offered on the advertised address now; false before that is known.
func (a *Agent) exposures() ([]network.Exposure, bool) {
	a.mu.Lock()
	ways := a.ways
	placed := true
	for key, d := range a.deployments {
		placed = placed && (!strings.HasPrefix(key, gatewayKeys) || d.isPlaced())
	}
	a.mu.Unlock()
	if !placed || !ways.knowsGateways || !ways.knowsKubernetes || !ways.knowsPublic {
		return nil, false
	}
	between := network.Exposure{Ports: []uint16{cluster.PortEastWest}, Gateways: a.readyGateways(eastWest)}
	if !a.options.ExposeIngress {
		return []network.Exposure{between}, true
	}
	ports := slices.Concat(ways.gateways, ways.kubernetes, ways.public)
	slices.Sort(ports)
	// A port of the ingress that is the east-west gateways' is theirs: the mesh depends on it.
	ports = slices.DeleteFunc(slices.Compact(ports), func(p uint16) bool { return p == cluster.PortEastWest && a.options.EastWestGateways > 0 })
	return []network.Exposure{between, {Ports: ports, Gateways: a.readyGateways(ingress)}}, true
}

// ownPorts are never taken from the machine's programs: administration by SSH, and what proxies listen on, which would
// hide a Heddle that runs beside this one.
var ownPorts = []uint16{
	22, cluster.PortAdmin, cluster.PortOutbound, cluster.PortInbound, cluster.PortXDS, cluster.PortHealth, cluster.PortDNS, cluster.PortMetrics,
}

// sharing leaves out of the ingress gateway's ports those that the machine itself needs, and returns these too. The port
// between clusters stays: that nobody listens there was a condition of the start.
func sharing(all []network.Exposure, listening map[uint16]bool) (kept []network.Exposure, left []uint16) {
	for _, e := range all {
		var ports []uint16
		for _, p := range e.Ports {
			if p != cluster.PortEastWest && (slices.Contains(ownPorts, p) || listening[p]) {
				left = append(left, p)
			} else {
				ports = append(ports, p)
			}
		}
		kept = append(kept, network.Exposure{Ports: ports, Gateways: e.Gateways})
	}
	return kept, left
}

// readyGateways are the addresses of the gateway's replicas that may get traffic.
func (a *Agent) readyGateways(kind gatewayKind) []netip.Addr {
	var out []netip.Addr
	for _, r := range a.all() {
		if !r.spec.Gateway || r.spec.Workload != kind.workload {
			continue
		}
		r.mu.Lock()
		if r.readyLocked() && r.address.IsValid() {
			out = append(out, r.address)
		}
		r.mu.Unlock()
	}
	return out
}

// keepWAN keeps the cluster reachable after its link was down.
func (a *Agent) keepWAN(ctx context.Context) {
	const again = time.Second
	for {
		err := network.KeepWAN(ctx, a.options.Advertise)
		if ctx.Err() != nil {
			return
		}
		a.log.Error("link to other clusters not repaired", "error", err, "again_in", again)
		if !wait(ctx, again) {
			return
		}
	}
}

// reexpose says that what is offered may have changed.
func (a *Agent) reexpose() {
	select {
	case a.rekick <- struct{}{}:
	default:
	}
}

// exposeLoop keeps what is offered on the advertised address at what is ready, without delay: until then, new
// connections go to a gateway that is not there.
func (a *Agent) exposeLoop(ctx context.Context) {
	// Ports that the machine's programs have are looked at again after a while: they may be free then.
	const again, freed = time.Second, 10 * time.Second
	var done []network.Exposure
	var spared []uint16
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.rekick:
		case <-retry.C:
		}
		want, known := a.exposures()
		if known && !a.options.Isolated && a.options.ExposeIngress {
			listening, err := network.Listening(a.options.Advertise)
			if err != nil {
				a.log.Error("gateways are not offered to the outside", "address", a.options.Advertise, "error", err, "again_in", again)
				retry.Reset(again)
				continue
			}
			var left []uint16
			if want, left = sharing(want, listening); len(left) > 0 {
				retry.Reset(freed)
			}
			if !slices.Equal(left, spared) {
				a.log.Warn("ports of the ingress gateway that stay the machine's own", "address", a.options.Advertise, "ports", left)
				spared = left
			}
		}
		if !known || done != nil && reflect.DeepEqual(want, done) {
			continue
		}
		if err := network.Expose(a.config.Cluster, a.options.Advertise, want); err != nil {
			a.log.Error("gateways are not offered to the outside", "address", a.options.Advertise, "error", err, "again_in", again)
			retry.Reset(again)
			continue
		}
		done = want
		for _, e := range want {
			a.log.Info("gateways offered", "address", a.options.Advertise, "ports", e.Ports, "gateways", e.Gateways)
		}
	}
}
