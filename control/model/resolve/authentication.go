package resolve

import (
	"fmt"
	"strings"

	security "istio.io/api/security/v1"
	securityv1 "istio.io/client-go/pkg/apis/security/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

func (b *builder) authentication(o *objects.Object, r *securityv1.RequestAuthentication) *model.Authentication {
	out := &model.Authentication{
		Namespace: o.GetNamespace(), Name: o.GetName(), Selector: r.Spec.GetSelector().GetMatchLabels(), Source: source(o),
	}
	if len(out.Selector) > 0 && !b.selectsWorkload(out.Namespace, out.Selector) {
		b.report.missing(o.Key(), "NoWorkload", "spec.selector", "selects no workload",
			"correct the labels, or apply the Workload")
	}
	for i, rule := range r.Spec.JwtRules {
		issuer := tokenIssuer(rule)
		if rule.JwksUri != "" {
			issuer.Fetch = b.keysSource(o, rule, fmt.Sprintf("spec.jwtRules[%d].jwksUri", i))
		}
		out.Issuers = append(out.Issuers, issuer)
	}
	return out
}

func tokenIssuer(r *security.JWTRule) model.TokenIssuer {
	out := model.TokenIssuer{
		Issuer: r.Issuer, Audiences: r.Audiences, Keys: r.Jwks, FromParams: r.FromParams, FromCookies: r.FromCookies,
		Forward: r.ForwardOriginalToken, PayloadHeader: strings.ToLower(r.OutputPayloadToHeader),
		ListClaims: r.SpaceDelimitedClaims,
	}
	for _, h := range r.FromHeaders {
		out.FromHeaders = append(out.FromHeaders, model.TokenHeader{Name: strings.ToLower(h.Name), Prefix: h.Prefix})
	}
	for _, h := range r.OutputClaimToHeaders {
		out.ClaimHeaders = append(out.ClaimHeaders, model.ClaimHeader{Name: strings.ToLower(h.Header), Claim: h.Claim})
	}
	return out
}

// keysSource finds who has an issuer's keys. Where it cannot be, the source leads nowhere: tokens of that issuer are
// refused, as when the keys cannot be fetched.
func (b *builder) keysSource(o *objects.Object, rule *security.JWTRule, path string) *model.KeysSource {
	uri, err := objects.ParseKeysURI(rule.JwksUri)
	if err != nil {
		// Its form was checked when it was admitted.
		b.report.missing(o.Key(), "Invalid", path, err.Error(), "correct it")
	}
	out := &model.KeysSource{
		URI: rule.JwksUri, Service: b.fullName(uri.Host, o.GetNamespace()), Port: uri.Port, Timeout: rule.Timeout.AsDuration(),
	}
	service := b.serviceOf(out.Service)
	if service != nil && service.External != nil && service.External.Entry != nil && uri.TLS {
		// Keys come from who proves to have the name, not from where a ServiceEntry leads.
		service = nil
	}
	inMesh := service != nil || strings.HasSuffix(out.Service, ".svc."+b.settings.Domain)
	refused := "until then tokens of " + rule.Issuer + " are refused"
	switch {
	case service == nil && inMesh:
		b.report.missing(o.Key(), "NoService", path, fmt.Sprintf("there is no service %s; %s", out.Service, refused),
			"apply the Service, or correct the host")
	case service == nil && !uri.TLS:
		b.report.missing(o.Key(), "NoService", path,
			fmt.Sprintf("%s is no service of the mesh, and from elsewhere keys are fetched by TLS only; %s", uri.Host, refused),
			"write https://")
	case service == nil:
		out.Service, out.Host = "", uri.Host
	case service.Port(uri.Port) == nil:
		b.report.missing(o.Key(), "NoPort", path, fmt.Sprintf("the service %s has no port %d; %s", out.Service, uri.Port, refused),
			"name one of its ports")
	case uri.TLS && !service.Port(uri.Port).TLS:
		b.report.missing(o.Key(), "NoTLS", path,
			fmt.Sprintf("proxies encrypt what they send to %s themselves, and https would do so twice; %s", out.Service, refused),
			"write http://, and the port of the service")
		// No cluster has this port.
		out.Port = 0
	}
	return out
}

// claimsOf reads the claims of a condition's key, such as request.auth.claims[group][name].
func claimsOf(key string) ([]string, bool) {
	rest, ok := strings.CutPrefix(key, "request.auth.claims")
	if !ok {
		return nil, false
	}
	return objects.ClaimPath(rest)
}
