package client

import "time"

// HandshakeRequest has a replica's identity shake hands with a server: POST
// /heddle/v1/agent/replicas/<namespace>/<name>/handshake. The connection leaves the replica's network as its proxy's do.
type HandshakeRequest struct {
	// Address is the IP and port to connect to, for example an east-west gateway's.
	Address string `json:"address"`
	// ServerName is the SNI, by which a gateway passes the connection on.
	ServerName string `json:"serverName"`
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
