package client

import "time"

// HandshakeRequest has a replica's identity shake hands with a server: POST
// /heddle/v1/agent/replicas/<namespace>/<name>/handshake. The connection leaves the replica's network as its proxy's do.
type HandshakeRequest struct {
	// Address is the IP and port to connect to, for example an east-west gateway's.
	Address string `json:"address"`
	// ServerName is the SNI, by which a gateway passes the connection on.
	ServerName string `json:"serverName"`
	// Anchors are the intermediates (PEM) of which one must have issued the server's certificate; none means any that the
	// mesh's root signed.
	Anchors []string `json:"anchors,omitempty"`
}

// HandshakeResult is what the server at the other end proved. It accepted the replica's certificate.
type HandshakeResult struct {
	// Identities are the URI names of its certificate, Names the DNS names.
	Identities []string `json:"identities"`
	Names      []string `json:"names"`
	// Issuer of the certificate, and its end.
	Issuer  string    `json:"issuer"`
	Expires time.Time `json:"expires"`
	// Took is how long the handshake lasted.
	Took time.Duration `json:"took"`
}

// CallRequest has a replica call a service as its application would: POST
// /heddle/v1/agent/replicas/<namespace>/<name>/call. The name is looked up in the cluster's DNS, and the connection is
// captured by the replica's own proxy.
type CallRequest struct {
	// Host is the service's whole name, Port that of the service.
	Host string `json:"host"`
	Port uint16 `json:"port"`
	// Protocol is HTTP, HTTP2 (asked for its gRPC health) or TCP (connected to, nothing is sent).
	Protocol string `json:"protocol"`
	// Path of an HTTP request, default "/".
	Path string `json:"path,omitempty"`
}

// CallResult is how a call ended: what came back, and what the caller's proxy counted of it.
type CallResult struct {
	// Did says what was sent where, Answer what came back.
	Did    string `json:"did"`
	Answer string `json:"answer"`
	// Identity is what the server proved to the caller's proxy, as that proxy counts it in Istio's metrics; empty when
	// the connection was in plaintext.
	Identity string `json:"identity,omitempty"`
	// Counted says that the proxy counted the call within the time that was given to it.
	Counted bool `json:"counted"`
	// Flags are Envoy's response flags of the call, "-" for none.
	Flags string `json:"flags,omitempty"`
	// Foreign says that the caller's proxy is another program, which does not count by identities.
	Foreign bool `json:"foreign,omitempty"`
	// Uncaptured says that the caller's annotations leave the call out of capture: its proxy did not see it.
	Uncaptured bool `json:"uncaptured,omitempty"`
	// Took is the time from the first byte sent to the answer.
	Took time.Duration `json:"took"`
}
