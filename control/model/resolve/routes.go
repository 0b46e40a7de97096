package resolve

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

func (b *builder) routes(o *objects.Object, v *networkingv1.VirtualService) *model.Routes {
	ns := o.GetNamespace()
	out := &model.Routes{
		Namespace: ns, Name: o.GetName(), Gateways: gatewayNames(v.Spec.Gateways, ns),
		ExportTo: visibility(v.Spec.ExportTo, ns), Source: source(o),
	}
	if len(out.Gateways) == 0 {
		out.Gateways = []string{model.GatewayMesh}
	}
	for _, h := range v.Spec.Hosts {
		out.Hosts = append(out.Hosts, b.fullName(h, ns))
	}
	b.boundTo(o, v, out)
	for i, r := range v.Spec.Http {
		out.HTTP = append(out.HTTP, b.httpRoute(o, fmt.Sprintf("spec.http[%d]", i), r))
	}
	for i, r := range v.Spec.Tcp {
		at := fmt.Sprintf("spec.tcp[%d]", i)
		route := model.TCPRoute{Source: source(o).At(at)}
		for _, m := range r.Match {
			route.Matches = append(route.Matches, model.Scope{
				Port: uint16(m.Port), SourceLabels: m.SourceLabels, SourceNamespace: m.SourceNamespace,
				Gateways: gatewayNames(m.Gateways, ns),
			})
		}
		for j, d := range r.Route {
			route.Forward = append(route.Forward,
				b.target(o, fmt.Sprintf("%s.route[%d].destination", at, j), d.Destination, d.Weight, len(r.Route), answered503))
		}
		out.TCP = append(out.TCP, route)
	}
	return out
}

// gatewayNames gives full names: a name without a namespace is of the object's own.
func gatewayNames(names []string, namespace string) []string {
	var out []string
	for _, g := range names {
		ns, name, ok := strings.Cut(g, "/")
		switch {
		case g == model.GatewayMesh:
			out = append(out, g)
			continue
		case !ok:
			ns, name = namespace, g
		case ns == ".":
			ns = namespace
		}
		out = append(out, ns+"/"+name)
	}
	return out
}

// boundTo notes gateways that do not exist, and hosts that no server of them serves.
func (b *builder) boundTo(o *objects.Object, v *networkingv1.VirtualService, r *model.Routes) {
	for i, full := range gatewayNames(v.Spec.Gateways, r.Namespace) {
		if full == model.GatewayMesh {
			continue
		}
		at := fmt.Sprintf("spec.gateways[%d]", i)
		b.look(factGateway, full, "", "")
		gateway := b.m.gateways[full]
		if gateway == nil {
			b.report.missing(o.Key(), "NoGateway", at, fmt.Sprintf("there is no Gateway %s", full),
				"apply it, or correct the name (name, or namespace/name)")
			continue
		}
		for k, h := range r.Hosts {
			served := slices.ContainsFunc(gateway.Servers, func(s model.Server) bool {
				return s.Serves(r.Namespace, h) != ""
			})
			if !served {
				b.report.missing(o.Key(), "HostNotServed", fmt.Sprintf("spec.hosts[%d]", k),
					fmt.Sprintf("no server of Gateway %s serves %s to namespace %s", full, h, r.Namespace),
					"add the host to one of its servers")
			}
		}
	}
}

func (b *builder) httpRoute(o *objects.Object, at string, r *networking.HTTPRoute) model.HTTPRoute {
	out := model.HTTPRoute{
		Name: r.Name, Timeout: r.Timeout.AsDuration(), Source: source(o).At(at),
		Request: headerOps(r.Headers.GetRequest()), Response: headerOps(r.Headers.GetResponse()),
	}
	for _, m := range r.Match {
		out.Matches = append(out.Matches, httpMatch(m, o.GetNamespace()))
	}
	for i, d := range r.Route {
		out.Forward = append(out.Forward,
			b.target(o, fmt.Sprintf("%s.route[%d].destination", at, i), d.Destination, d.Weight, len(r.Route), answered503))
		// Only a single destination may have header changes of its own, so they are the route's.
		if d.Headers != nil {
			out.Request = joinOps(out.Request, headerOps(d.Headers.Request))
			out.Response = joinOps(out.Response, headerOps(d.Headers.Response))
		}
	}
	if x := r.Redirect; x != nil {
		out.Redirect = &model.Redirect{
			Path: x.Uri, PathPrefix: x.GetPrefixRewrite(), Authority: x.Authority, Scheme: x.Scheme,
			Port: uint16(x.GetPort()), Status: x.RedirectCode,
		}
		if out.Redirect.Status == 0 {
			out.Redirect.Status = 301
		}
	}
	if x := r.DirectResponse; x != nil {
		out.Direct = &model.Direct{Status: x.Status, Body: x.GetBody().GetBytes()}
		if s := x.GetBody().GetString_(); s != "" {
			out.Direct.Body = []byte(s)
		}
	}
	if x := r.Rewrite; x != nil {
		out.Rewrite = &model.Rewrite{Path: x.Uri, Authority: x.Authority}
		if x.UriRegexRewrite != nil {
			out.Rewrite.Pattern, out.Rewrite.Substitution = x.UriRegexRewrite.Match, x.UriRegexRewrite.Rewrite
		}
	}
	out.Retry, out.Fault, out.CORS = retry(r.Retries), fault(r.Fault), cors(r.CorsPolicy)
	out.Mirrors = b.mirrors(o, at, r)
	return out
}

func joinOps(a, b model.HeaderOps) model.HeaderOps {
	return model.HeaderOps{
		Set: append(a.Set, b.Set...), Add: append(a.Add, b.Add...), Remove: append(a.Remove, b.Remove...),
	}
}

func retry(r *networking.HTTPRetry) *model.Retry {
	if r == nil {
		return nil
	}
	out := &model.Retry{
		Attempts: uint32(r.Attempts), PerTry: r.PerTryTimeout.AsDuration(), Backoff: r.Backoff.AsDuration(),
		SameHost: r.RetryIgnorePreviousHosts != nil && !r.RetryIgnorePreviousHosts.Value,
	}
	for _, word := range splitList(r.RetryOn) {
		if n, err := strconv.ParseUint(word, 10, 16); err == nil {
			out.Statuses = append(out.Statuses, uint32(n))
			continue
		}
		out.On = append(out.On, word)
	}
	if len(out.Statuses) > 0 && !slices.Contains(out.On, "retriable-status-codes") {
		out.On = append(out.On, "retriable-status-codes")
	}
	return out
}

func httpMatch(m *networking.HTTPMatchRequest, namespace string) model.HTTPMatch {
	out := model.HTTPMatch{
		Name: m.GetName(), IgnorePathCase: m.GetIgnoreUriCase(),
		Scope: model.Scope{
			Port: uint16(m.GetPort()), SourceLabels: m.GetSourceLabels(), SourceNamespace: m.GetSourceNamespace(),
			Gateways: gatewayNames(m.GetGateways(), namespace),
		},
	}
	if m.GetUri().GetMatchType() != nil {
		p := stringMatch(m.Uri)
		out.Path = &p
	}
	for _, pseudo := range []struct {
		name  string
		match *networking.StringMatch
	}{{":method", m.GetMethod()}, {":authority", m.GetAuthority()}, {":scheme", m.GetScheme()}} {
		if pseudo.match.GetMatchType() != nil {
			out.Headers = append(out.Headers, model.NamedMatch{Name: pseudo.name, Match: stringMatch(pseudo.match)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetHeaders())) {
		if claim, ok := objects.RoutingClaim(name); ok {
			out.Claims = append(out.Claims, model.ClaimMatch{Claim: claim, Match: stringMatch(m.Headers[name])})
			continue
		}
		out.Headers = append(out.Headers, model.NamedMatch{
			Name: strings.ToLower(name), Match: stringMatch(m.Headers[name]),
		})
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetWithoutHeaders())) {
		if claim, ok := objects.RoutingClaim(name); ok {
			out.Claims = append(out.Claims, model.ClaimMatch{Claim: claim, Match: stringMatch(m.WithoutHeaders[name]), Not: true})
			continue
		}
		out.Headers = append(out.Headers, model.NamedMatch{
			Name: strings.ToLower(name), Match: stringMatch(m.WithoutHeaders[name]), Not: true,
		})
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetQueryParams())) {
		out.Query = append(out.Query, model.NamedMatch{Name: name, Match: stringMatch(m.QueryParams[name])})
	}
	return out
}

func stringMatch(m *networking.StringMatch) model.StringMatch {
	switch t := m.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		if t.Exact == "" {
			return model.StringMatch{Kind: model.Present}
		}
		return model.StringMatch{Kind: model.Exact, Value: t.Exact}
	case *networking.StringMatch_Prefix:
		return model.StringMatch{Kind: model.Prefix, Value: t.Prefix}
	case *networking.StringMatch_Regex:
		if t.Regex == "*" {
			return model.StringMatch{Kind: model.Present}
		}
		return model.StringMatch{Kind: model.Regex, Value: t.Regex}
	}
	return model.StringMatch{Kind: model.Present}
}

func headerOps(h *networking.Headers_HeaderOperations) model.HeaderOps {
	var out model.HeaderOps
	for _, name := range slices.Sorted(maps.Keys(h.GetSet())) {
		out.Set = append(out.Set, model.Header{Name: strings.ToLower(name), Value: h.Set[name]})
	}
	for _, name := range slices.Sorted(maps.Keys(h.GetAdd())) {
		out.Add = append(out.Add, model.Header{Name: strings.ToLower(name), Value: h.Add[name]})
	}
	for _, name := range h.GetRemove() {
		out.Remove = append(out.Remove, strings.ToLower(name))
	}
	slices.Sort(out.Remove)
	return out
}

// target resolves a destination. What does not exist is accepted, since it may come later, and answered with 503.
// answered503 is what becomes of requests to a destination that is not there.
const answered503 = "requests are answered with 503"

func (b *builder) target(
	o *objects.Object, at string, d *networking.Destination, weight int32, of int, until string,
) model.Destination {
	out := model.Destination{
		Host: b.fullName(d.Host, o.GetNamespace()), Port: uint16(d.GetPort().GetNumber()), Subset: d.Subset,
		Weight: uint32(weight),
	}
	if of == 1 {
		out.Weight = 1
	}
	svc := b.serviceOf(out.Host)
	if svc == nil || !svc.ExportTo.In(o.GetNamespace()) {
		out.Missing = true
		b.report.missing(o.Key(), "NoService", at+".host", fmt.Sprintf("there is no service %s", out.Host),
			"apply the Service, or correct the host; until then "+until)
		return out
	}
	switch {
	case out.Port == 0 && len(svc.Ports) == 1:
		out.Port = svc.Ports[0].Number
	case out.Port == 0:
		out.Missing = true
		b.report.missing(o.Key(), "NoPort", at+".port", fmt.Sprintf("%s has several ports", svc.Host),
			"give port.number: "+portList(svc))
		return out
	case svc.Port(out.Port) == nil:
		out.Missing = true
		b.report.missing(o.Key(), "NoPort", at+".port.number", fmt.Sprintf("%s has no port %d", svc.Host, out.Port),
			"use "+portList(svc))
		return out
	}
	if out.Subset != "" && !b.hasSubset(svc, out.Subset) {
		out.Missing = true
		b.report.missing(o.Key(), "NoSubset", at+".subset",
			fmt.Sprintf("no DestinationRule of %s has a subset %s", svc.Host, out.Subset),
			"add the subset; until then "+until)
	}
	return out
}

func (b *builder) hasSubset(svc *model.Service, name string) bool {
	b.look(factDestinations, "", "", "")
	for _, host := range patternsOf(svc.Host) {
		b.look(factDestinations, host, "", "")
		for _, d := range b.m.destinations[host] {
			if d.Subset(name) != nil {
				return true
			}
		}
	}
	return false
}

// patternsOf are a host and all patterns that cover it.
func patternsOf(host string) []string {
	out := []string{host}
	for i := range len(host) {
		if host[i] == '.' {
			out = append(out, "*"+host[i:])
		}
	}
	return append(out, "*")
}

// keptOut is the older of all routes for a host, the oldest first, that keeps some out of force; nil when none does.
func keptOut(all []*model.Routes, some *model.Routes) *model.Routes {
	var owner *model.Routes
	for _, r := range all {
		kept := owner != nil && overlaps(owner.ExportTo, r.ExportTo)
		if r == some {
			if kept {
				return owner
			}
			return nil
		}
		if !kept {
			owner = r
		}
	}
	return nil
}

// conflict says that a host's routes are kept out by older ones.
func (r recorder) conflict(routes *model.Routes, host int, older *model.Routes) {
	r.refuse(routes.Source.Key, "Conflict", fmt.Sprintf("spec.hosts[%d]", host),
		fmt.Sprintf("%s has routes already, from the older %s", routes.Hosts[host], older.Source.Key),
		"put the routes into one VirtualService")
}

// twice says that a namespace has an older rule of mutual TLS.
func (r recorder) twice(p, older *model.PeerMode) {
	r.refuse(p.Source.Key, "Conflict", "spec",
		fmt.Sprintf("the older %s is for the whole namespace already", older.Source.Key), "delete one of the two")
}

func overlaps(a, b model.Visibility) bool {
	if !a.Limited || !b.Limited {
		return true
	}
	return slices.ContainsFunc(a.Namespaces, b.In)
}
