package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/server/client"
)

const (
	// handshakeTime bounds a handshake that is made for a check.
	handshakeTime = 5 * time.Second
	// meshProtocol is the ALPN of connections in the mesh, Istio's.
	meshProtocol = "istio"
)

// handleHandshake connects with a replica's identity, as its proxy would, and tells whom it met.
func (a *Agent) handleHandshake(w http.ResponseWriter, r *http.Request) {
	found := a.replicaOf(w, r)
	if found == nil {
		return
	}
	var request client.HandshakeRequest
	if !read(w, r, &request) {
		return
	}
	if _, err := netip.ParseAddrPort(request.Address); err != nil {
		refuse(w, &client.Problem{Status: http.StatusBadRequest, What: "the address is no IP and port", Where: request.Address, Why: err.Error()})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), handshakeTime)
	defer cancel()
	result, err := found.handshake(ctx, request)
	if err != nil {
		refuse(w, &client.Problem{Status: http.StatusBadGateway, What: "no handshake with " + request.ServerName, Where: request.Address, Why: err.Error()})
		return
	}
	answer(w, result)
}

func (r *replica) handshake(ctx context.Context, request client.HandshakeRequest) (client.HandshakeResult, error) {
	r.mu.Lock()
	credential, user := r.credential, r.proxyUser
	r.mu.Unlock()
	if credential == nil {
		return client.HandshakeResult{}, errNoIdentity
	}
	pair, roots, err := credential.Pair()
	if err != nil {
		return client.HandshakeResult{}, err
	}
	if len(request.Anchors) > 0 {
		roots = x509.NewCertPool()
		for i, anchor := range request.Anchors {
			if !roots.AppendCertsFromPEM([]byte(anchor)) {
				return client.HandshakeResult{}, fmt.Errorf("anchors[%d]: no certificate in it", i)
			}
		}
	}
	// The proxy's user: what belongs to others is captured.
	connection, err := network.DialAs(ctx, r.netns, user, user, "tcp", request.Address)
	if err != nil {
		return client.HandshakeResult{}, err
	}
	defer connection.Close()
	return meet(ctx, connection, pair, roots, request.ServerName)
}

// meet shakes hands over a connection. A server that ends the handshake has accepted the client's certificate: in TLS 1.2 its
// last message comes after it has verified that (RFC 5246, section 7.3). In TLS 1.3 a client is through before, and silence
// would have to be read as a yes.
func meet(ctx context.Context, connection net.Conn, pair tls.Certificate, roots *x509.CertPool, name string) (client.HandshakeResult, error) {
	met := false
	secured := tls.Client(connection, &tls.Config{
		Certificates: []tls.Certificate{pair}, ServerName: name, NextProtos: []string{meshProtocol}, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12,
		// Identities are URIs, so the name is not compared; VerifyConnection checks the chain.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			err := verifyChain(state, roots)
			met = err == nil
			return err
		},
	})
	began := time.Now()
	if err := secured.HandshakeContext(ctx); err != nil {
		var refusal *net.OpError
		switch {
		case !met || ctx.Err() != nil:
			return client.HandshakeResult{}, fmt.Errorf("TLS: %w", err)
		case errors.As(err, &refusal) && refusal.Op == "remote error":
			return client.HandshakeResult{}, fmt.Errorf("the server refused the certificate: %w", err)
		default: // A refusal is an alert, and may get lost in a reset.
			return client.HandshakeResult{}, fmt.Errorf("the connection broke when the server had the certificate, as when it refuses it: %w", err)
		}
	}
	took := time.Since(began)
	leaf := secured.ConnectionState().PeerCertificates[0]
	result := client.HandshakeResult{Names: leaf.DNSNames, Issuer: leaf.Issuer.CommonName, Expires: leaf.NotAfter, Took: took}
	for _, uri := range leaf.URIs {
		result.Identities = append(result.Identities, uri.String())
	}
	return result, nil
}

// verifyChain holds the server's chain against the anchors, which are the mesh's roots or intermediates of clusters, name constraints of the issuers included.
func verifyChain(state tls.ConnectionState, roots *x509.CertPool) error {
	intermediates := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err
}
