package translate

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"heddle.io/heddle/control/model"
)

// Secrets that the agent serves to each workload's proxy over SDS.
const (
	secretCertificate = "default"
	secretRoots       = "ROOTCA"
	// clusterSDS is the static cluster of the bootstrap that reaches the agent.
	clusterSDS = "sds-grpc"
	clusterXDS = "xds-grpc"
)

// alpnMesh is offered between sidecars, so that a permissive workload can tell mutual TLS of the mesh from the
// application's own TLS. alpnMeshAll are the names that Istio's own sidecars may offer.
const alpnMesh = "istio"

var alpnMeshAll = []string{"istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"}

// systemRoots is where Debian keeps the public authorities.
const systemRoots = "/etc/ssl/certs/ca-certificates.crt"

// agentSecret asks the agent for a secret, as Istio's proxies do.
func agentSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType:                   corev3.ApiConfigSource_GRPC,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: clusterSDS},
			}}},
		}},
		InitialFetchTimeout: durationpb.New(0),
		ResourceApiVersion:  corev3.ApiVersion_V3,
	}}
}

func dnsMatcher(pattern *matcherv3.StringMatcher) *tlsv3.SubjectAltNameMatcher {
	return &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_DNS, Matcher: pattern}
}

func exactly(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: value}}
}

func beginning(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: value}}
}

func ending(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: value}}
}

func matching(regex string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
		SafeRegex: &matcherv3.RegexMatcher{Regex: regex},
	}}
}

// meshIdentity is the common part of mutual TLS with the mesh's own certificates. Peers are of an authority in that secret.
func (g *generator) meshIdentity(alpn []string, peers []*tlsv3.SubjectAltNameMatcher, authorities *tlsv3.SdsSecretConfig) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{
		TlsParams: &tlsv3.TlsParameters{
			TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
			TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		},
		AlpnProtocols:                  alpn,
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{agentSecret(secretCertificate)},
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: &tlsv3.CertificateValidationContext{
					MatchTypedSubjectAltNames: peers,
				},
				ValidationContextSdsSecretConfig: authorities,
			},
		},
	}
}

// inboundTLS accepts mutual TLS from any workload of the clusters of the mesh; policies say who may do what. A cluster
// that was removed is locked out however long its certificates last, and whoever has its name.
func (g *generator) inboundTLS(alpn []string) *corev3.TransportSocket {
	return g.socket(socketTLS, g.pack(&tlsv3.DownstreamTlsContext{
		CommonTlsContext:         g.meshIdentity(alpn, g.callers(), agentSecret(secretRoots)),
		RequireClientCertificate: flag(true),
		// A resumed session would outlive the certificate that opened it.
		SessionTicketKeysType: &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{
			DisableStatelessSessionResumption: true,
		},
	}))
}

// outboundTLS is mutual TLS with the mesh's certificates towards a service.
func (g *generator) outboundTLS(s *model.Service, sni string, http2 bool, t *model.ClientTLS) *corev3.TransportSocket {
	var subjects []string
	if t != nil {
		subjects = t.SubjectNames
	}
	// Gateways between clusters go by the server name; within one, nothing does.
	if t != nil && t.ServerName != "" && len(s.Remote) == 0 {
		sni = t.ServerName
	}
	alpn := []string{alpnMesh}
	if http2 {
		alpn = append(alpn, "h2")
	}
	authorities := agentSecret(secretRoots)
	if set := g.anchorsFor(s); !set.none() {
		authorities = &tlsv3.SdsSecretConfig{Name: set.name, SdsConfig: ads()}
	}
	return g.socket(socketTLS, g.pack(&tlsv3.UpstreamTlsContext{
		CommonTlsContext: g.meshIdentity(alpn, g.servers(s, subjects), authorities), Sni: sni,
	}))
}

// originatedTLS is TLS with the user's own files towards a service (SIMPLE and MUTUAL).
func (g *generator) originatedTLS(t *model.ClientTLS, http2 bool) *corev3.TransportSocket {
	common := &tlsv3.CommonTlsContext{}
	if http2 {
		common.AlpnProtocols = []string{"h2"}
	}
	if t.Mode == model.TLSMutual {
		common.TlsCertificates = []*tlsv3.TlsCertificate{{
			CertificateChain: fileSource(t.CertificateFile), PrivateKey: fileSource(t.KeyFile),
		}}
	}
	validation := &tlsv3.CertificateValidationContext{}
	if !t.SkipVerify {
		roots := t.AuthorityFile
		if roots == "" {
			roots = systemRoots
		}
		validation.TrustedCa = fileSource(roots)
		if len(t.Authorities) > 0 {
			validation.TrustedCa = bytesSource(t.Authorities)
		}
		for _, name := range t.SubjectNames {
			kind := tlsv3.SubjectAltNameMatcher_DNS
			if isURI(name) {
				kind = tlsv3.SubjectAltNameMatcher_URI
			}
			validation.MatchTypedSubjectAltNames = append(validation.MatchTypedSubjectAltNames,
				&tlsv3.SubjectAltNameMatcher{SanType: kind, Matcher: exactly(name)})
		}
	}
	common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}
	return g.socket(socketTLS, g.pack(&tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: t.ServerName}))
}

func fileSource(name string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: name}}
}

func bytesSource(data []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
}
