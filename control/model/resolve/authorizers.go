package resolve

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// meshConfig is what is read of the mesh's configuration.
type meshConfig struct {
	// authorizers are the extension providers by the names that policies use.
	authorizers map[string]*model.Authorizer
	// keyProvider is the default of all proxies, nil for none.
	keyProvider *objects.KeyProvider
}

// configMap makes the mesh's configuration, before the policies that name its extension providers; other ConfigMaps are
// looked up by those who name them. What cannot be resolved is said of the configuration, and left in: who cannot be asked
// lets nothing pass unless it says otherwise.
func (b *builder) configMap(o *objects.Object, m *corev1.ConfigMap) *meshConfig {
	if !objects.IsMeshConfig(o.Key()) {
		return nil
	}
	config, err := objects.MeshConfig(m)
	if err != nil {
		// Its form was checked when it was admitted.
		b.report.refuse(o.Key(), "Invalid", "data."+objects.MeshConfigKey, err.Error(), "correct it")
		return nil
	}
	found := &meshConfig{authorizers: map[string]*model.Authorizer{}, keyProvider: objects.MeshKeyProvider(config)}
	for i, p := range config.ExtensionProviders {
		out := authorizer(p)
		at := fmt.Sprintf("data.%s.extensionProviders[%d].", objects.MeshConfigKey, i)
		kind, service := "envoyExtAuthzHttp", p.GetEnvoyExtAuthzHttp().GetService()
		if out.GRPC {
			kind, service = "envoyExtAuthzGrpc", p.GetEnvoyExtAuthzGrpc().GetService()
		}
		namespace, host, both := strings.Cut(service, "/")
		if !both {
			namespace, host = o.GetNamespace(), service
		}
		out.Service = b.fullName(host, namespace)
		b.checkAuthorizer(o, out, at+kind)
		found.authorizers[out.Name] = out
	}
	return found
}

func (b *builder) checkAuthorizer(o *objects.Object, a *model.Authorizer, at string) {
	service := b.serviceOf(a.Service)
	switch {
	case service == nil:
		b.report.missing(o.Key(), "NoService", at+".service", fmt.Sprintf("there is no service %s", a.Service),
			"apply the Service, or correct the name")
	case service.Port(a.Port) == nil:
		b.report.missing(o.Key(), "NoPort", at+".port", fmt.Sprintf("the service %s has no port %d", a.Service, a.Port),
			"name one of its ports")
	case a.GRPC && service.Port(a.Port).Protocol != model.HTTP2:
		b.report.missing(o.Key(), "NotGRPC", at+".port",
			fmt.Sprintf("port %d of %s is not said to speak gRPC, and is asked by HTTP/1.1", a.Port, a.Service),
			"call the service's port grpc, or set its appProtocol to grpc")
	}
}

func authorizer(p *mesh.MeshConfig_ExtensionProvider) *model.Authorizer {
	if g := p.GetEnvoyExtAuthzGrpc(); g != nil {
		return &model.Authorizer{
			Name: p.Name, Port: uint16(g.Port), GRPC: true, Timeout: g.Timeout.AsDuration(), FailOpen: g.FailOpen,
			ClearRouteCache: g.ClearRouteCache, StatusOnError: status(g.StatusOnError), Body: authorizerBody(g.IncludeRequestBodyInCheck),
		}
	}
	h := p.GetEnvoyExtAuthzHttp()
	show := h.GetIncludeRequestHeadersInCheck()
	if len(show) == 0 {
		show = h.GetIncludeHeadersInCheck() //nolint:staticcheck // Deprecated, and read where the other is not there, as in Istio.
	}
	out := &model.Authorizer{
		Name: p.Name, Port: uint16(h.GetPort()), Timeout: h.GetTimeout().AsDuration(), FailOpen: h.GetFailOpen(),
		ClearRouteCache: h.GetClearRouteCache(), StatusOnError: status(h.GetStatusOnError()), Body: authorizerBody(h.GetIncludeRequestBodyInCheck()),
		PathPrefix: h.GetPathPrefix(), ShowHeaders: lower(show), ToUpstream: lower(h.GetHeadersToUpstreamOnAllow()),
		ToClientOnDeny: lower(h.GetHeadersToDownstreamOnDeny()), ToClientOnAllow: lower(h.GetHeadersToDownstreamOnAllow()),
	}
	for _, name := range slices.Sorted(maps.Keys(h.GetIncludeAdditionalHeadersInCheck())) {
		out.AddHeaders = append(out.AddHeaders, model.Header{Name: name, Value: h.IncludeAdditionalHeadersInCheck[name]})
	}
	return out
}

func authorizerBody(b *mesh.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody) *model.AuthorizerBody {
	if b == nil {
		return nil
	}
	return &model.AuthorizerBody{Max: b.MaxRequestBytes, AllowPartial: b.AllowPartialMessage, AsBytes: b.PackAsBytes}
}

// status reads what the form check has let through; zero for none.
func status(text string) uint32 {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return uint32(n)
}

func lower(names []string) []string {
	var out []string
	for _, n := range names {
		out = append(out, strings.ToLower(n))
	}
	return out
}

// custom finds the authorizer of a policy. Without one the policy refuses what it matches.
func (b *builder) custom(o *objects.Object, provider string) *model.Authorizer {
	b.look(factAuthorizer, provider, "", "")
	if b.m.config != nil && b.m.config.authorizers[provider] != nil {
		return b.m.config.authorizers[provider]
	}
	b.report.missing(o.Key(), "NoProvider", "spec.provider.name",
		fmt.Sprintf("the mesh's configuration has no extension provider %s; until then what the policy matches is refused", provider),
		fmt.Sprintf("add it to extensionProviders in ConfigMap %s/%s, or correct the name", b.settings.RootNamespace, objects.MeshConfigName))
	return nil
}
