package model

import "strings"

// Gateway is a set of servers on the gateway proxies whose labels the selector selects.
type Gateway struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Selector  map[string]string `json:"selector"`
	Servers   []Server          `json:"servers"`
	Source    Source            `json:"source"`
}

// FullName is namespace/name.
func (g *Gateway) FullName() string { return g.Namespace + "/" + g.Name }

// ServerProtocol is what a gateway's server speaks with clients.
type ServerProtocol string

// Protocols of servers.
const (
	ServerHTTP  ServerProtocol = "HTTP"
	ServerHTTPS ServerProtocol = "HTTPS"
	ServerTCP   ServerProtocol = "TCP"
)

// Server is a port of a gateway and the hosts it serves.
type Server struct {
	Port     uint16         `json:"port"`
	PortName string         `json:"portName"`
	Protocol ServerProtocol `json:"protocol"`
	Hosts    []ServerHost   `json:"hosts"`
	// RedirectHTTPS answers every request with a redirect to https.
	RedirectHTTPS bool       `json:"redirectHTTPS,omitempty"`
	TLS           *ServerTLS `json:"tls,omitempty"`
	Source        Source     `json:"source"`
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
	// Credential is the name of the certificate in the gateway proxy's namespace.
	Credential string `json:"credential"`
	// ClientCertificate demands a certificate of the client, signed by the credential's authority.
	ClientCertificate bool `json:"clientCertificate,omitempty"`
	// SubjectNames, of which the client's certificate must have one; none accepts any.
	SubjectNames []string   `json:"subjectNames,omitempty"`
	Min          TLSVersion `json:"min,omitempty"`
	Max          TLSVersion `json:"max,omitempty"`
	Ciphers      []string   `json:"ciphers,omitempty"`
}

// Credential is a gateway's certificate. Printing it shows neither key nor certificate.
type Credential struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Chain and Key are PEM; Authorities is PEM, empty without client certificates.
	Chain       []byte `json:"-"`
	Key         []byte `json:"-"`
	Authorities []byte `json:"-"`
	Source      Source `json:"source"`
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
		if covers(h.Host, host) {
			return host
		}
		if covers(host, h.Host) {
			return h.Host
		}
	}
	return ""
}

// covers says whether a pattern (a name, "*.suffix" or "*") covers everything that another does.
func covers(pattern, host string) bool {
	switch {
	case pattern == host, pattern == "*":
		return true
	case strings.HasPrefix(pattern, "*."):
		return strings.HasSuffix(host, pattern[1:]) && len(host) > len(pattern)-1
	}
	return false
}
