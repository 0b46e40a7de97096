package resolve

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

func (b *builder) gateway(o *objects.Object, g *networkingv1.Gateway) *model.Gateway {
	gw := &model.Gateway{
		Namespace: o.GetNamespace(), Name: o.GetName(), Selector: g.Spec.Selector, Source: source(o),
	}
	for i, s := range g.Spec.Servers {
		at := fmt.Sprintf("spec.servers[%d]", i)
		server := model.Server{
			Port: uint16(s.Port.Number), PortName: s.Port.Name, Source: source(o).At(at),
			RedirectHTTPS: s.GetTls().GetHttpsRedirect(),
		}
		switch strings.ToUpper(s.Port.Protocol) {
		case "HTTPS":
			server.Protocol = model.ServerHTTPS
			server.TLS = b.serverTLS(o, at, s.Tls)
		case "TCP":
			server.Protocol = model.ServerTCP
		default:
			server.Protocol = model.ServerHTTP
		}
		for _, h := range s.Hosts {
			ns, host, ok := strings.Cut(h, "/")
			if !ok {
				ns, host = "*", h
			}
			switch ns {
			case "*":
				ns = ""
			case ".":
				ns = gw.Namespace
			}
			if !strings.Contains(host, ".") && host != "*" {
				host = b.fullName(host, gw.Namespace)
			}
			server.Hosts = append(server.Hosts, model.ServerHost{Namespace: ns, Host: strings.ToLower(host)})
		}
		gw.Servers = append(gw.Servers, server)
	}
	if !b.selectsGateway(gw.Selector) {
		b.report.missing(o.Key(), "NoGatewayProxy", "spec.selector", "no gateway has these labels",
			"use {istio: ingressgateway}, the labels of the gateway that `heddle up` starts")
	}
	return gw
}

// selectsGateway says whether a selector selects the gateways that every cluster has, or any running replica.
func (b *builder) selectsGateway(selector map[string]string) bool {
	for _, labels := range builtinGateways {
		if model.Selects(selector, labels) {
			return true
		}
	}
	return len(b.replicasIn("", selector)) > 0
}

// builtinGateways are the labels of the gateways that the agent starts, the same as Istio's.
var builtinGateways = []map[string]string{
	{"app": "istio-ingressgateway", "istio": "ingressgateway"},
	{"app": "istio-eastwestgateway", "istio": "eastwestgateway"},
}

func (b *builder) serverTLS(o *objects.Object, at string, t *networking.ServerTLSSettings) *model.ServerTLS {
	out := &model.ServerTLS{
		Certificates: []model.Certificate{{Namespace: b.settings.RootNamespace, Name: t.CredentialName}}, SubjectNames: t.SubjectAltNames, Ciphers: t.CipherSuites,
		ClientCertificate: t.Mode == networking.ServerTLSSettings_MUTUAL,
		Min:               tlsVersion(t.MinProtocolVersion), Max: tlsVersion(t.MaxProtocolVersion),
	}
	b.credential(o.Key(), at+".tls.credentialName", t.CredentialName, out.ClientCertificate)
	return out
}

// credential reads the Secret that a server names.
func (b *builder) credential(of objects.Key, path, name string, client bool) {
	// Gateways run in the root namespace and read their secrets there.
	b.credentialIn(of, path, b.settings.RootNamespace, name, client)
}

// credentialIn reads the Secret that a server names, or says what is wrong with it.
func (b *builder) credentialIn(of objects.Key, path, namespace, name string, client bool) (*model.Credential, *Finding) {
	missing := func(reason, problem, remedy string) (*model.Credential, *Finding) {
		b.report.missing(of, reason, path, problem, remedy)
		return nil, &Finding{Reason: reason, Path: path, Problem: problem, Remedy: remedy}
	}
	b.look(factSecret, namespace, name, "")
	secret, ok := b.m.secrets[objects.Key{Kind: objects.Secret.Kind, Namespace: namespace, Name: name}]
	if !ok {
		return missing("NoSecret", fmt.Sprintf("there is no Secret %s in namespace %s", name, namespace),
			"until it is applied, this server refuses connections")
	}
	credential, problem := b.m.credentialOf(secret, client)
	if secret.Unreadable != "" {
		// What nobody can read just now has not changed by that.
		if last := b.m.lastCredential(namespace, name); last != nil && (!client || len(last.Authorities) > 0) {
			b.report.missing(of, "BadSecret", path, fmt.Sprintf("Secret %s/%s %s", namespace, name, problem),
				"until it is right, this server goes on with the certificate that it had")
			b.credentials = append(b.credentials, last)
			return last, nil
		}
	}
	if problem != "" {
		return missing("BadSecret", fmt.Sprintf("Secret %s/%s %s", namespace, name, problem),
			"until it is right, this server refuses connections")
	}
	b.credentials = append(b.credentials, credential)
	return credential, nil
}

// certificateNames are the hosts that a credential's certificate is for.
func certificateNames(c *model.Credential) []string {
	pair, err := tls.X509KeyPair(c.Chain, c.Key)
	if err != nil || pair.Leaf == nil {
		return nil
	}
	names := make([]string, 0, len(pair.Leaf.DNSNames))
	for _, n := range pair.Leaf.DNSNames {
		if !strings.Contains(strings.TrimPrefix(n, "*."), "*") { // No other has a meaning (RFC 9525, section 6.3).
			names = append(names, strings.ToLower(n))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// lastCredential is a certificate of the mesh before, or nil. What is only tried gives none.
func (m *Model) lastCredential(namespace, name string) *model.Credential {
	if m.untried != nil {
		return m.untried.Credential(namespace, name)
	}
	return m.mesh.Credential(namespace, name)
}

// readCredential reads a Secret as Istio does: tls.crt, tls.key and ca.crt, or cert, key and cacert.
func readCredential(o *objects.Object, client bool) (*model.Credential, string) {
	if o.Unreadable != "" {
		return nil, "cannot be read: " + o.Unreadable
	}
	secret, ok := o.Resource.(*corev1.Secret)
	if !ok {
		return nil, "is not a Secret"
	}
	first := func(names ...string) []byte {
		for _, n := range names {
			if v := line(secret.Data[n]); len(v) > 1 {
				return v
			}
		}
		return nil
	}
	c := &model.Credential{
		Namespace: o.GetNamespace(), Name: o.GetName(), Source: source(o),
		Chain: first("tls.crt", "cert"), Key: first("tls.key", "key"),
	}
	if c.Chain == nil || c.Key == nil {
		return nil, "has no tls.crt and tls.key"
	}
	pair, err := tls.X509KeyPair(c.Chain, c.Key)
	if err != nil {
		return nil, "cannot be used: " + err.Error()
	}
	if why := unservable(pair.Leaf.PublicKey); why != "" {
		return nil, "cannot be used: " + why
	}
	if err := certificates(c.Chain); err != nil {
		return nil, "cannot be used: " + err.Error()
	}
	if !client {
		return c, ""
	}
	if c.Authorities = first("ca.crt", "cacert"); c.Authorities == nil {
		return nil, "has no ca.crt to verify clients with"
	}
	if err := certificates(c.Authorities); err != nil {
		return nil, "has a ca.crt that cannot be used: " + err.Error()
	}
	return c, ""
}

// line is a text without blanks around it, and its end. The text, which an object has, stays as it is.
func line(text []byte) []byte { return slices.Concat(bytes.TrimSpace(text), []byte{'\n'}) }

// certificates says what is wrong with a file of them. A proxy takes all of its blocks or none.
func certificates(text []byte) error {
	count := 0
	for rest := text; bytes.Contains(rest, []byte("-----BEGIN")); count++ {
		block, after := pem.Decode(rest)
		// One that is none is passed over for the next.
		if block == nil || bytes.Count(rest[:len(rest)-len(after)], []byte("-----BEGIN")) != 1 {
			return fmt.Errorf("block %d is not PEM", count+1)
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("block %d is a %s", count+1, block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("block %d: %w", count+1, err)
		}
		rest = after
	}
	if count == 0 {
		return errors.New("there is no certificate")
	}
	return nil
}

// unservable says why a proxy cannot serve TLS with a key; it is empty when it can.
func unservable(key any) string {
	switch key := key.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() < 2048 {
			return fmt.Sprintf("an RSA key of %d bits; use 2048 or more", key.N.BitLen())
		}
		return ""
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P224() {
			return ""
		}
	case ed25519.PublicKey:
		return ""
	}
	return "its key is neither RSA, ECDSA (P-256, P-384, P-521) nor Ed25519"
}

func tlsVersion(v networking.ServerTLSSettings_TLSProtocol) model.TLSVersion {
	switch v {
	case networking.ServerTLSSettings_TLSV1_2:
		return model.TLS12
	case networking.ServerTLSSettings_TLSV1_3:
		return model.TLS13
	}
	return ""
}
