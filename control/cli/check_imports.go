package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	securityapi "istio.io/api/security/v1"
	securityv1 "istio.io/client-go/pkg/apis/security/v1"
	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/server/client"
)

const (
	// maxHandshakes are made at a time.
	maxHandshakes = 8
	// maxNames are looked up at most.
	maxNames = 500
)

// meshCheck tries what global namespaces promise to one cluster.
type meshCheck struct {
	session  *session
	client   *client.Client
	mesh     client.FederationStatus
	replicas []client.Replica
	global   []*v1alpha1.GlobalNamespace
}

// offer is a service that another cluster offers to this one.
type offer struct {
	cluster client.ClusterStatus
	export  registry.Export
	// known says that this cluster has heard of it, ready how many endpoints the other one has; -1 when that one does
	// not run here, so that only the export tells.
	known bool
	ready int
	// kept says what may keep it from other clusters, rightly; empty for nothing.
	kept string
}

func (o offer) name() string { return o.export.Namespace + "/" + o.export.Name }

// mapped says whether one global namespace maps both a namespace of a cluster and any of this one.
func (m meshCheck) mapped(cluster, namespace string) bool {
	return slices.ContainsFunc(m.global, func(g *v1alpha1.GlobalNamespace) bool {
		v := gnsView{spec: &g.Spec}
		return v.maps(cluster, namespace) && slices.ContainsFunc(g.Spec.Mappings, func(mapping v1alpha1.NamespaceMapping) bool { return resolve.Covers(mapping.Cluster, m.mesh.Cluster) })
	})
}

// offers lists what a peer offers: by its own word when it runs here, else by what this cluster has heard.
func (m meshCheck) offers(ctx context.Context, peer client.ClusterStatus) ([]offer, error) {
	var out []offer
	for _, e := range peer.Exports {
		out = append(out, offer{cluster: peer, export: e, known: true, ready: -1})
	}
	if !slices.Contains(m.session.contexts.clusters(), peer.Name) {
		return out, nil
	}
	c, err := m.session.clientOf(peer.Name)
	if err != nil {
		return nil, err
	}
	services, err := c.List(ctx, objects.Service, "")
	if err != nil {
		return nil, fmt.Errorf("ask %s for its services: %w", peer.Name, err)
	}
	replicas, err := c.Replicas(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask %s for its replicas: %w", peer.Name, err)
	}
	authentications, err := c.List(ctx, objects.PeerAuthentication, "")
	if err != nil {
		return nil, fmt.Errorf("ask %s for its use of mutual TLS: %w", peer.Name, err)
	}
	for _, o := range services.Items {
		svc, ok := o.Resource.(*corev1.Service)
		if !ok || len(svc.Spec.Selector) == 0 || !m.mapped(peer.Name, svc.Namespace) {
			continue
		}
		ready := 0
		for _, r := range replicas {
			if r.Ready && r.Namespace == svc.Namespace && model.Selects(svc.Spec.Selector, r.Labels) {
				ready++
			}
		}
		at := slices.IndexFunc(out, func(o offer) bool { return o.export.Namespace == svc.Namespace && o.export.Name == svc.Name })
		if at < 0 {
			out = append(out, offer{cluster: peer, export: registry.Export{Namespace: svc.Namespace, Name: svc.Name}})
			at = len(out) - 1
		}
		out[at].ready, out[at].kept = ready, keptBy(svc, authentications.Items)
	}
	slices.SortFunc(out, func(a, b offer) int { return strings.Compare(a.name(), b.name()) })
	return out, nil
}

// keptBy says what may keep a service from other clusters: a list of namespaces that see it, or mutual TLS that is off,
// without which gateways between clusters pass nothing.
func keptBy(svc *corev1.Service, authentications []*objects.Object) string {
	const annotation = "networking.istio.io/exportTo"
	if seen, ok := svc.Annotations[annotation]; ok && !slices.ContainsFunc(strings.Split(seen, ","), func(n string) bool { return strings.TrimSpace(n) == "*" }) {
		return fmt.Sprintf("its annotation %s: %q", annotation, seen)
	}
	const off = securityapi.PeerAuthentication_MutualTLS_DISABLE
	for _, o := range authentications {
		p, ok := o.Resource.(*securityv1.PeerAuthentication)
		if !ok || p.Namespace != svc.Namespace && p.Namespace != cluster.GatewayNamespace {
			continue
		}
		disabled := p.Spec.GetMtls().GetMode() == off
		for _, port := range p.Spec.GetPortLevelMtls() {
			disabled = disabled || port.GetMode() == off
		}
		if disabled {
			return fmt.Sprintf("PeerAuthentication %s/%s, which turns mutual TLS off", p.Namespace, p.Name)
		}
	}
	return ""
}

// imports shakes hands with every service that other clusters offer.
func (m meshCheck) imports(ctx context.Context) []finding {
	caller, ok := m.caller()
	if !ok {
		return nil
	}
	var out []finding
	for _, peer := range m.mesh.Clusters {
		if peer.Self || len(peer.Gateways) == 0 || !peer.Reachable {
			continue
		}
		offers, err := m.offers(ctx, peer)
		if err != nil {
			out = append(out, tried("cluster/"+peer.Name, "services", err, "", "`sudo heddle up --name "+peer.Name+"` repairs it"))
			continue
		}
		results := make([]finding, len(offers))
		slots := make(chan struct{}, maxHandshakes)
		var group sync.WaitGroup
		for i, o := range offers {
			group.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				results[i] = m.meet(ctx, caller, o)
			})
		}
		group.Wait()
		out = append(out, results...)
	}
	return out
}

// caller is the replica whose identity and network are used: a ready one of a mapped namespace, else a gateway's.
func (m meshCheck) caller() (client.Replica, bool) {
	var found client.Replica
	ok := false
	for _, r := range m.replicas {
		if !r.Ready || ok && r.Gateway {
			continue
		}
		if !r.Gateway && m.mapped(m.mesh.Cluster, r.Namespace) {
			return r, true
		}
		if !ok {
			found, ok = r, true
		}
	}
	return found, ok
}

// meet shakes hands with one service through each gateway of its cluster, at each port.
func (m meshCheck) meet(ctx context.Context, caller client.Replica, o offer) finding {
	subject := o.name() + "@" + o.cluster.Name
	ready := 0
	for _, g := range o.export.Groups {
		ready += int(g.Ready)
	}
	switch {
	case o.kept != "" && (!o.known || ready == 0 && o.ready > 0):
		return warn(said(subject, "identity", errors.New("this cluster has not heard of it, or of its endpoints"), "", "it may be meant so, by "+o.kept))
	case !o.known:
		return said(subject, "identity", errors.New("this cluster has not heard of it yet"), "", "`heddle cluster status` shows whether the stream to the primary stands")
	case ready == 0 && o.ready > 0:
		return said(subject, "identity", fmt.Errorf("it has %s, of which this cluster has not heard yet", count(o.ready, "ready endpoint")), "", "`heddle cluster status` shows whether the stream to the primary stands")
	case ready == 0:
		return warn(said(subject, "identity", errors.New("it has no ready endpoint there"), "", "`heddle ps --cluster "+o.cluster.Name+"` shows why"))
	}
	var slowest time.Duration
	for _, gateway := range o.cluster.Gateways {
		for _, port := range o.export.Ports {
			request := client.HandshakeRequest{Address: gateway.String(), ServerName: eastWestName(o.export, port.Number), Anchors: o.cluster.Anchors}
			var result client.HandshakeResult
			err := m.client.Do(ctx, http.MethodPost, agentPath(caller)+"/handshake", request, &result)
			impostor := false
			if err == nil {
				err = judgeIdentity(o, result)
				impostor = err != nil
			}
			if err != nil {
				f := tried(subject, "identity", fmt.Errorf("port %d through %s: %s", port.Number, gateway, briefly(err)), "",
					fmt.Sprintf("`heddle logs -n %s istio-eastwestgateway-0 --proxy --cluster %s` shows what the gateway did", cluster.GatewayNamespace, o.cluster.Name))
				if impostor {
					return final(f)
				}
				return f
			}
			slowest = max(slowest, result.Took)
		}
	}
	issued := "issued in " + o.cluster.Name
	if len(o.cluster.Anchors) == 0 {
		issued += " by its names alone, since it announces no intermediates"
	}
	return tried(subject, "identity", nil, fmt.Sprintf("handshake through %s with the certificate of %s/%s: %s, %s, in %s", gatewayText(o.cluster), caller.Namespace, caller.State.Name, list(o.export.Identities), issued, slowest.Round(time.Millisecond)), "")
}

// eastWestName is the SNI by which east-west gateways find a service.
func eastWestName(e registry.Export, port uint16) string {
	return fmt.Sprintf("outbound_.%d_._.%s.%s.svc.%s", port, e.Name, e.Namespace, cluster.Domain)
}

// judgeIdentity says whether the server is who it should be, in the cluster that it should be in.
func judgeIdentity(o offer, result client.HandshakeResult) error {
	if !slices.ContainsFunc(result.Identities, func(i string) bool { return slices.Contains(o.export.Identities, i) }) {
		return fmt.Errorf("the server proved %s instead of %s", list(result.Identities), list(o.export.Identities))
	}
	issuer := o.cluster.Issuer()
	if want := issuer.Name(cluster.Domain); !issuer.Issued(cluster.Domain, result.Names) {
		return fmt.Errorf("the server's certificate names %s, not %s: it was issued by %s", list(result.Names), want, result.Issuer)
	}
	if !slices.ContainsFunc(o.export.Identities, func(i string) bool { return issuer.Proves(cluster.Domain, i, result.Names) }) {
		return fmt.Errorf("the server's certificate names %s, none of which is %s in %s", list(result.Names), list(o.export.Identities), o.cluster.Name)
	}
	return nil
}

// names looks up what global namespaces promise, as an application of this cluster would.
func (m meshCheck) names(ctx context.Context) []finding {
	known, err := m.client.Names(ctx)
	if err != nil {
		return []finding{tried("mesh", "names", err, "", "see `heddle logs --controller`")}
	}
	var out []finding
	for _, g := range m.global {
		v := gnsView{spec: &g.Spec, mesh: m.mesh}
		at := slices.IndexFunc(m.replicas, func(r client.Replica) bool { return !r.Gateway && r.Ready && v.maps(m.mesh.Cluster, r.Namespace) })
		if at < 0 {
			continue
		}
		r := m.replicas[at]
		looked, wrong := 0, []string{}
		for _, h := range known.Hosts {
			if !strings.HasSuffix(h.Name, "."+g.Spec.Domain) || h.Limited && !slices.Contains(h.Namespaces, r.Namespace) || len(h.Addresses) == 0 || looked == maxNames {
				continue
			}
			looked++
			var got []netip.Addr
			err := m.client.Do(ctx, http.MethodGet, agentPath(r)+"/resolve?name="+url.QueryEscape(h.Name), nil, &got)
			if err == nil && !sameAddresses(got, h.Addresses) {
				err = fmt.Errorf("answered with %v instead of %v", got, h.Addresses)
			}
			if err != nil {
				wrong = append(wrong, h.Name+": "+briefly(err))
			}
		}
		var problem error
		switch {
		case len(wrong) > 0:
			problem = fmt.Errorf("%d of %d names: %s", len(wrong), looked, strings.Join(wrong[:min(3, len(wrong))], "; "))
		case looked == 0:
			problem = fmt.Errorf("no service answers as <service>.%s in %s", g.Spec.Domain, r.Namespace)
		}
		out = append(out, tried("gns/"+g.Name, "names", problem, fmt.Sprintf("%s of %s, looked up in %s/%s", count(looked, "name"), g.Spec.Domain, r.Namespace, r.State.Name),
			"`heddle gns describe "+g.Name+"` shows the names and what is wrong"))
	}
	return out
}

// briefly leaves out of a problem what stands beside it already.
func briefly(err error) string {
	var problem *client.Problem
	if errors.As(err, &problem) {
		return problem.What + because(problem.Why)
	}
	return err.Error()
}

func sameAddresses(a, b []netip.Addr) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, netip.Addr.Compare)
	slices.SortFunc(b, netip.Addr.Compare)
	return slices.Equal(a, b)
}
