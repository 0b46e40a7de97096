package resolve

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

func (b *builder) destination(o *objects.Object, d *networkingv1.DestinationRule) *model.DestinationPolicy {
	ns := o.GetNamespace()
	out := &model.DestinationPolicy{
		Namespace: ns, Name: o.GetName(), Host: b.fullName(d.Spec.Host, ns),
		Clients: d.Spec.GetWorkloadSelector().GetMatchLabels(), ExportTo: visibility(d.Spec.ExportTo, ns),
		Policy: trafficPolicy(d.Spec.TrafficPolicy), Source: source(o),
	}
	for _, s := range d.Spec.Subsets {
		out.Subsets = append(out.Subsets, model.Subset{
			Name: s.Name, Labels: s.Labels, Policy: trafficPolicy(s.TrafficPolicy),
		})
	}
	b.ownClients(o, out)
	if !strings.HasPrefix(out.Host, "*") {
		svc := b.serviceOf(out.Host)
		if svc == nil {
			b.report.missing(o.Key(), "NoService", "spec.host", fmt.Sprintf("there is no service %s", out.Host),
				"apply the Service, or correct the host")
		} else {
			b.subsets(o, out, svc)
			b.policyPorts(o, d, svc)
		}
	}
	b.acrossClusters(o, out)
	return out
}

// ownClients has a policy that names files hold for clients of its own namespace alone: the files are on the clients' machines, and a
// client that lacks one can use none of what it is told in the same breath. Whoever owns the root namespace may name files of all.
func (b *builder) ownClients(o *objects.Object, d *model.DestinationPolicy) {
	names := d.Policy.NamesFiles() || slices.ContainsFunc(d.Subsets, func(s model.Subset) bool { return s.Policy.NamesFiles() })
	if !names || d.Namespace == b.settings.RootNamespace {
		return
	}
	if !d.ExportTo.Limited || len(d.ExportTo.Namespaces) != 1 || d.ExportTo.Namespaces[0] != d.Namespace {
		b.report.note(o.Key(), "spec.trafficPolicy.tls", "names files of the clients' machines, so it holds for clients of "+d.Namespace+" alone")
	}
	d.ExportTo = model.Visibility{Limited: true, Namespaces: []string{d.Namespace}}
}

// acrossClusters notes a policy that keeps its clients from other clusters.
func (b *builder) acrossClusters(o *objects.Object, d *model.DestinationPolicy) {
	if t := d.Policy.TLS; t == nil || t.Mode == model.TLSMesh {
		return
	}
	b.look(factRemotes, "", "", "")
	all := make([]*model.Service, 0, len(b.m.remotes))
	for host := range b.m.remotes {
		all = append(all, b.m.services[host])
	}
	slices.SortFunc(all, model.CompareServices)
	for _, s := range all {
		if _, covered := s.Matches(d.Host); covered {
			b.report.note(o.Key(), "spec.trafficPolicy.tls", fmt.Sprintf("with mode %s, %s is not reached in other clusters: "+
				"only the mesh's mutual TLS (ISTIO_MUTUAL, or no tls at all) passes between clusters", d.Policy.TLS.Mode, s.Host))
			return
		}
	}
}

// subsets notes those that no workload belongs to: requests to them are answered with 503.
func (b *builder) subsets(o *objects.Object, d *model.DestinationPolicy, svc *model.Service) {
	for i, s := range d.Subsets {
		found := false
		for _, w := range b.workloadsIn(svc.Namespace, svc.Selector) {
			found = found || model.Selects(s.Labels, w.Labels)
		}
		for _, r := range svc.Replicas {
			found = found || model.Selects(s.Labels, r.Labels)
		}
		for _, r := range svc.Remote {
			for _, g := range r.Groups {
				found = found || model.Selects(s.Labels, g.Labels)
			}
		}
		if !found {
			b.report.missing(o.Key(), "EmptySubset", fmt.Sprintf("spec.subsets[%d].labels", i),
				fmt.Sprintf("no workload of %s has these labels", svc.Host), "label a Workload, or correct the labels")
		}
	}
}

func (b *builder) policyPorts(o *objects.Object, d *networkingv1.DestinationRule, svc *model.Service) {
	check := func(at string, p *networking.TrafficPolicy) {
		for i, s := range p.GetPortLevelSettings() {
			if n := uint16(s.GetPort().GetNumber()); svc.Port(n) == nil {
				b.report.missing(o.Key(), "NoPort", fmt.Sprintf("%s.portLevelSettings[%d].port.number", at, i),
					fmt.Sprintf("%s has no port %d", svc.Host, n), "use "+portList(svc))
			}
		}
	}
	check("spec.trafficPolicy", d.Spec.TrafficPolicy)
	for i, s := range d.Spec.Subsets {
		check(fmt.Sprintf("spec.subsets[%d].trafficPolicy", i), s.TrafficPolicy)
	}
}

func portList(svc *model.Service) string {
	var numbers []string
	for _, p := range svc.Ports {
		numbers = append(numbers, fmt.Sprint(p.Number))
	}
	return strings.Join(numbers, " or ")
}

func trafficPolicy(p *networking.TrafficPolicy) model.TrafficPolicy {
	if p == nil {
		return model.TrafficPolicy{}
	}
	out := model.TrafficPolicy{PortPolicy: portPolicy(p.LoadBalancer, p.ConnectionPool, p.OutlierDetection, p.Tls)}
	for _, s := range p.PortLevelSettings {
		if out.Ports == nil {
			out.Ports = map[uint16]model.PortPolicy{}
		}
		out.Ports[uint16(s.Port.Number)] = portPolicy(s.LoadBalancer, s.ConnectionPool, s.OutlierDetection, s.Tls)
	}
	return out
}

func portPolicy(lb *networking.LoadBalancerSettings, pool *networking.ConnectionPoolSettings,
	outlier *networking.OutlierDetection, tls *networking.ClientTLSSettings,
) model.PortPolicy {
	var out model.PortPolicy
	if simple, ok := lb.GetLbPolicy().(*networking.LoadBalancerSettings_Simple); ok {
		switch simple.Simple {
		case networking.LoadBalancerSettings_ROUND_ROBIN:
			out.Balance = model.RoundRobin
		case networking.LoadBalancerSettings_RANDOM:
			out.Balance = model.Random
		default:
			// LEAST_CONN is the deprecated name of LEAST_REQUEST, and that is the default too.
			out.Balance = model.LeastRequest
		}
	}
	out.Pool = connectionPool(pool)
	if o := outlier; o != nil {
		out.Outlier = &model.Outlier{
			Consecutive5xx: counter(o.Consecutive_5XxErrors), ConsecutiveGateway: counter(o.ConsecutiveGatewayErrors),
			SplitLocalOrigin: o.SplitExternalLocalOriginErrors,
			ConsecutiveLocal: counter(o.ConsecutiveLocalOriginFailures),
			Interval:         o.Interval.AsDuration(), BaseEjection: o.BaseEjectionTime.AsDuration(),
			MaxEjectionPercent: uint32(o.MaxEjectionPercent), MinHealthPercent: uint32(o.MinHealthPercent),
		}
	}
	if t := tls; t != nil {
		out.TLS = &model.ClientTLS{
			Mode: model.TLSMode(t.Mode.String()), CertificateFile: t.ClientCertificate, KeyFile: t.PrivateKey,
			AuthorityFile: t.CaCertificates, ServerName: t.Sni, SubjectNames: t.SubjectAltNames,
			SkipVerify: t.InsecureSkipVerify.GetValue(),
		}
	}
	return out
}

func connectionPool(p *networking.ConnectionPoolSettings) *model.Pool {
	if p == nil {
		return nil
	}
	t, h := p.GetTcp(), p.GetHttp()
	out := &model.Pool{
		MaxConnections: uint32(t.GetMaxConnections()), ConnectTimeout: t.GetConnectTimeout().AsDuration(),
		TCPIdleTimeout: t.GetIdleTimeout().AsDuration(), MaxPendingRequests: uint32(h.GetHttp1MaxPendingRequests()),
		MaxRequests: uint32(h.GetHttp2MaxRequests()), MaxRequestsPerConnection: uint32(h.GetMaxRequestsPerConnection()),
		MaxRetries: uint32(h.GetMaxRetries()), HTTPIdleTimeout: h.GetIdleTimeout().AsDuration(),
		MaxConcurrentStreams: uint32(h.GetMaxConcurrentStreams()),
	}
	switch {
	case h.GetUseClientProtocol():
		out.Upgrade = model.AsClient
	case h.GetH2UpgradePolicy() == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE:
		out.Upgrade = model.ToHTTP2
	}
	return out
}

func counter(v *wrapperspb.UInt32Value) *uint32 {
	if v == nil {
		return nil
	}
	n := v.Value
	return &n
}
