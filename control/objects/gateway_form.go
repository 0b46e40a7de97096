package objects

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
)

// GatewayCiphers are the TLS 1.2 cipher suites that a gateway's tls.cipherSuites may name: those with forward secrecy
// that Envoy's BoringSSL has.
var GatewayCiphers = []string{
	"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384",
	"ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305",
	"ECDHE-ECDSA-AES128-SHA", "ECDHE-RSA-AES128-SHA", "ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA",
}

func (c *checker) gateway(g *networkingv1.Gateway) {
	if len(g.Spec.Selector) == 0 {
		c.fail("spec.selector", "missing", "name the gateway's labels, for example {istio: ingressgateway}")
	}
	c.labels("spec.selector", g.Spec.Selector)
	if len(g.Spec.Servers) == 0 {
		c.fail("spec.servers", "missing", "give at least one server")
	}
	names, protocols := map[string]int{}, map[uint32]string{}
	for i, s := range g.Spec.Servers {
		at := fmt.Sprintf("spec.servers[%d]", i)
		if s.GetPort() == nil {
			c.fail(at+".port", "missing", "give number, name and protocol")
			continue
		}
		c.port(at+".port.number", int64(s.Port.Number))
		if s.Port.Name == "" {
			c.fail(at+".port.name", "missing", "name the port, for example http")
		}
		if j, dup := names[s.Port.Name]; dup && s.Port.Name != "" {
			c.fail(at+".port.name", fmt.Sprintf("%q is also the name of servers[%d]", s.Port.Name, j),
				"use another name")
		}
		names[s.Port.Name] = i
		protocol := strings.ToUpper(s.Port.Protocol)
		if other, used := protocols[s.Port.Number]; used && other != protocol {
			c.fail(at+".port.protocol", fmt.Sprintf("port %d is %s in another server", s.Port.Number, other),
				"use one protocol per port")
		}
		protocols[s.Port.Number] = protocol
		c.serverHosts(at, s.Hosts)
		c.serverTLS(at, protocol, s)
	}
}

func (c *checker) serverHosts(at string, hosts []string) {
	if len(hosts) == 0 {
		c.fail(at+".hosts", "missing", `give at least one host, for example ["*"]`)
	}
	for j, h := range hosts {
		path := fmt.Sprintf("%s.hosts[%d]", at, j)
		if ns, name, ok := strings.Cut(h, "/"); ok {
			if ns != "*" && ns != "." {
				c.dnsLabel(path, ns)
			}
			h = name
		}
		c.host(path, h)
	}
}

func (c *checker) serverTLS(at, protocol string, s *networking.Server) {
	tls := s.GetTls()
	switch protocol {
	case "HTTP", "HTTP2", "GRPC", "GRPC-WEB":
		if tls == nil {
			return
		}
		if !tls.HttpsRedirect || tls.CredentialName != "" {
			c.fail(at+".tls", "a server of protocol "+protocol+" speaks plain text",
				"use protocol HTTPS, or only httpsRedirect: true here")
		}
		return
	case "TCP":
		if tls != nil {
			c.fail(at+".tls", "a server of protocol TCP passes bytes on as they are", "remove it")
		}
		return
	case "HTTPS":
	default:
		c.fail(at+".port.protocol", fmt.Sprintf("protocol %q is not supported", s.Port.Protocol),
			"use HTTP, HTTPS, HTTP2, GRPC or TCP")
		return
	}
	if tls == nil {
		c.fail(at+".tls", "missing", "give mode: SIMPLE and a credentialName")
		return
	}
	switch tls.Mode {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL:
	default:
		c.fail(at+".tls.mode", fmt.Sprintf("mode %s is not supported", tls.Mode), "use SIMPLE or MUTUAL")
		return
	}
	if tls.HttpsRedirect {
		c.fail(at+".tls.httpsRedirect", "cannot be set on a server that speaks TLS",
			"set it on the HTTP server that shall redirect here")
	}
	if tls.CredentialName == "" {
		c.fail(at+".tls.credentialName", "missing",
			"name a Secret of type kubernetes.io/tls in the gateway's namespace")
	} else if strings.ContainsAny(tls.CredentialName, "/:") {
		c.fail(at+".tls.credentialName", fmt.Sprintf("%q is not a name", tls.CredentialName),
			"give only the name; the secret is read in the gateway's namespace")
	}
	if len(tls.SubjectAltNames) > 0 && tls.Mode != networking.ServerTLSSettings_MUTUAL {
		c.fail(at+".tls.subjectAltNames", "has no effect without client certificates", "use mode MUTUAL")
	}
	if tls.MinProtocolVersion != 0 && tls.MaxProtocolVersion != 0 && tls.MinProtocolVersion > tls.MaxProtocolVersion {
		c.fail(at+".tls.minProtocolVersion", "is above maxProtocolVersion", "exchange the two")
	}
	for _, v := range []struct {
		field string
		value networking.ServerTLSSettings_TLSProtocol
	}{{"minProtocolVersion", tls.MinProtocolVersion}, {"maxProtocolVersion", tls.MaxProtocolVersion}} {
		if v.value == networking.ServerTLSSettings_TLSV1_0 || v.value == networking.ServerTLSSettings_TLSV1_1 {
			c.fail(at+".tls."+v.field, v.value.String()+" is not supported (RFC 8996)", "use TLSV1_2 or TLSV1_3")
		}
	}
	for j, suite := range tls.CipherSuites {
		if !slices.Contains(GatewayCiphers, suite) {
			c.fail(fmt.Sprintf("%s.tls.cipherSuites[%d]", at, j), fmt.Sprintf("%q is not supported", suite),
				"use some of "+strings.Join(GatewayCiphers, ", "))
		}
	}
}
