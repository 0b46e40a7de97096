package model

import (
	"strings"

	"heddle.io/heddle/control/objects"
)

// Gateway is a set of servers on the gateway proxies whose labels the selector selects.
type Gateway struct {
	// Group of the API that it is of; empty for Istio's.
	Group     string            `json:"group,omitempty"`
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Selector  map[string]string `json:"selector"`
	Servers   []Server          `json:"servers"`
	Source    Source            `json:"source"`
}

// FullName is namespace/name, after the group when it has one: two APIs may each have a Gateway of a name.
func (g *Gateway) FullName() string {
	if g.Group != "" {
		return g.Group + "/" + g.Namespace + "/" + g.Name
	}
	return g.Namespace + "/" + g.Name
}

// ServerName is how routes name one of the servers that they are bound to: where each server says which routes it takes,
// its own name, else the gateway's.
func (g *Gateway) ServerName(s *Server) string {
	if s.Allowed != nil {
		return g.FullName() + "/" + s.PortName
	}
	return g.FullName()
}

// ServerProtocol is what a gateway's server speaks with clients.
type ServerProtocol string

// Protocols of servers.
const (
	ServerHTTP  ServerProtocol = "HTTP"
	ServerHTTPS ServerProtocol = "HTTPS"
	ServerTCP   ServerProtocol = "TCP"
	// ServerTLSByName is any protocol over TLS, routed by the server name that the client asks for. Without TLS settings the bytes
	// are passed on as they are.
	ServerTLSByName ServerProtocol = "TLS"
)

// SharesPort says whether servers of both protocols can listen on one port.
func (p ServerProtocol) SharesPort(other ServerProtocol) bool {
	overTLS := func(p ServerProtocol) bool { return p == ServerHTTPS || p == ServerTLSByName }
	return p == other || overTLS(p) && overTLS(other)
}

// Server is a port of a gateway and the hosts it serves.
type Server struct {
	Port     uint16         `json:"port"`
	PortName string         `json:"portName"`
	Protocol ServerProtocol `json:"protocol"`
	Hosts    []ServerHost   `json:"hosts"`
	// RedirectHTTPS answers every request with a redirect to https.
	RedirectHTTPS bool       `json:"redirectHTTPS,omitempty"`
	TLS           *ServerTLS `json:"tls,omitempty"`
	// Allowed are the routes that may be bound to the server; nil leaves it to the routes, and their hosts. A server that has
	// it serves its host alone: what another server of the port has a narrower host for is not its business.
	Allowed *AllowedRoutes `json:"allowed,omitempty"`
	Source  Source         `json:"source"`
}

// AllowedRoutes says which routes a server takes.
type AllowedRoutes struct {
	// Kinds of objects that the routes are from.
	Kinds []string `json:"kinds"`
	// From is All, Same (the gateway's namespace), Selector or None.
	From string `json:"from"`
	// Selector of namespaces by their labels, as Kubernetes writes it.
	Selector string `json:"selector,omitempty"`
}

// ServerHost is a host that a server serves, and whose routes may name it.
type ServerHost struct {
	// Namespace of the routes; empty for any.
	Namespace string `json:"namespace,omitempty"`
	// Host is a name, "*.suffix" or "*".
	Host string `json:"host"`
}

// TLSVersion of the protocol; empty leaves it to the proxy's default (1.2 to 1.3).
type TLSVersion string

// Versions of TLS.
const (
	TLS12 TLSVersion = "1.2"
	TLS13 TLSVersion = "1.3"
)

// ServerTLS is how a server terminates TLS.
type ServerTLS struct {
	// Certificates, of which the client's server name chooses one.
	Certificates []Certificate `json:"certificates"`
	// ClientCertificate demands a certificate of the client, signed by the credential's authority.
	ClientCertificate bool `json:"clientCertificate,omitempty"`
	// SubjectNames, of which the client's certificate must have one; none accepts any.
	SubjectNames []string   `json:"subjectNames,omitempty"`
	Min          TLSVersion `json:"min,omitempty"`
	Max          TLSVersion `json:"max,omitempty"`
	Ciphers      []string   `json:"ciphers,omitempty"`
}

// Certificate names a credential.
type Certificate struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Hosts that it is shown to clients of, beside those of the others; none for all that are left of the server's.
	Hosts []string `json:"hosts,omitempty"`
}

// Credential is a gateway's certificate. Printing it shows neither key nor certificate.
type Credential struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Chain and Key are PEM; Authorities is PEM, empty without client certificates.
	Chain       []byte `json:"-"`
	Key         []byte `json:"-"`
	Authorities []byte `json:"-"`
	// KeyProvider does the operations with the key: the mesh's default where it takes such keys, nil for the proxy's TLS library.
	KeyProvider *objects.KeyProvider `json:"keyProvider,omitempty"`
	Source      Source               `json:"source"`
}

// String names the credential and nothing else.
func (c *Credential) String() string { return "credential " + c.Namespace + "/" + c.Name }

// GoString is String, so that %#v shows no key.
func (c *Credential) GoString() string { return c.String() }

// Serves gives the narrower of the server's and the routes' host when the server serves it to routes of that
// namespace, and "" when it does not. Wildcards may stand on either side.
func (s *Server) Serves(namespace, host string) string {
	for _, h := range s.Hosts {
		if h.Namespace != "" && h.Namespace != namespace {
			continue
		}
		if CoversHost(h.Host, host) {
			return host
		}
		if CoversHost(host, h.Host) {
			return h.Host
		}
	}
	return ""
}

// CoversHost says whether a pattern (a name, "*.suffix" or "*") covers everything that another does.
func CoversHost(pattern, host string) bool {
	switch {
	case pattern == host, pattern == "*":
		return true
	case strings.HasPrefix(pattern, "*."):
		return strings.HasSuffix(host, pattern[1:]) && len(host) > len(pattern)-1
	}
	return false
}
