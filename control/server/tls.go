package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"heddle.io/heddle/control/connlimit"
	"heddle.io/heddle/control/server/client"
)

// Waits of the API's port.
const (
	// listenAgain is the time between attempts to open the port: its address may be away for a while.
	listenAgain = 2 * time.Second
	// bodyTimeout is how long the body of a remote request may take.
	bodyTimeout = time.Minute
)

// Remote says where the API is served over TLS.
type Remote struct {
	// Address is an IP address and a port.
	Address netip.AddrPort
	// ClientCA is a file with the certificates (PEM) of the authority that names users by client certificates; empty for
	// none. It is read anew for each request with a certificate.
	ClientCA string
}

// ServeRemote answers over TLS, where the configuration says, until ctx ends. A port that cannot be opened is tried again: it must not take the cluster
// down.
func (s *Server) ServeRemote(ctx context.Context) error {
	remote := s.config.Remote
	for {
		listener, err := net.Listen("tcp", remote.Address.String())
		if err == nil {
			s.config.Log.Info("API served over TLS", "address", listener.Addr().String(), "name", s.config.Authority.APIName())
			s.remoteProblem.Store("")
			if err = s.serveTLS(ctx, listener, remote); err == nil || ctx.Err() != nil {
				return err
			}
		}
		problem := "the API is not served at " + remote.Address.String() + ": " + err.Error()
		if s.remoteProblem.Swap(problem) != problem {
			s.config.Log.Error(problem)
		}
		timer := time.NewTimer(listenAgain)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

func (s *Server) serveTLS(ctx context.Context, listener net.Listener, remote Remote) error {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
		// Who shows a certificate that does not count is told why, which a failed handshake cannot say; see verified.
		ClientAuth: tls.RequestClientCert, Time: s.config.Now, SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return s.config.Authority.API(addresses(remote.Address.Addr()))
		},
	}
	limited := connlimit.New(listener, maxPerCaller, maxCallers, nil)
	limited.Evict = true
	s.count(limited)
	// A page in the browser of somebody with a client certificate must not act as them.
	pages := http.NewCrossOriginProtection()
	pages.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse(w, &client.Problem{Status: http.StatusForbidden, What: "the API takes no changes from web pages", Where: r.Header.Get("Origin")})
	}))
	return s.serve(ctx, tls.NewListener(limited, config), pages.Handler(timed(s.handler)))
}

// addresses that the certificate names: nothing else than the name proves which cluster it is.
func addresses(bound netip.Addr) []netip.Addr {
	out := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	if bound.IsValid() && !bound.IsUnspecified() && !bound.IsLoopback() {
		out = append(out, bound)
	}
	return out
}

// verified is the chain of the certificate that a client showed, and whether the authority that names users signed it;
// nothing when there is no certificate. The error is a [*client.Problem] with status 401.
func (s *Server) verified(state *tls.ConnectionState) (chain []*x509.Certificate, user bool, err error) {
	shown := state.PeerCertificates
	if len(shown) == 0 {
		return nil, false, nil
	}
	options := x509.VerifyOptions{Intermediates: x509.NewCertPool(), CurrentTime: s.config.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range shown[1:] {
		options.Intermediates.AddCert(c)
	}
	var why error
	if path := s.config.Remote.ClientCA; path != "" {
		options.Roots, why = readPool(path)
		if why == nil {
			var chains [][]*x509.Certificate
			if chains, why = shown[0].Verify(options); why == nil {
				return chains[0], true, nil
			}
		}
	}
	options.Roots = s.config.Authority.MeshPool()
	chains, meshErr := shown[0].Verify(options)
	if meshErr == nil {
		return chains[0], false, nil
	}
	return nil, false, &client.Problem{Status: http.StatusUnauthorized, What: "the client certificate does not count here", Why: errors.Join(why, meshErr).Error(),
		Remedy: "use one of the API's client authority (`heddle up --api-client-ca`) or of a workload of this cluster, or a token"}
}

func readPool(path string) (*x509.CertPool, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("client authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("client authority: %s holds no certificate", path)
	}
	return pool, nil
}

// timed gives the body of a request a time: streams of answers have none.
func timed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			control := http.NewResponseController(w)
			if err := control.SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil {
				refuse(w, &client.Problem{Status: http.StatusInternalServerError, What: "the time of the request cannot be bounded", Why: err.Error()})
				return
			}
			r.Body = &timedBody{ReadCloser: r.Body, end: func() { _ = control.SetReadDeadline(time.Time{}) }}
		}
		next.ServeHTTP(w, r)
	})
}

// timedBody tells when it has been read.
type timedBody struct {
	io.ReadCloser
	end func()
}

// Read implements [io.Reader].
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.end()
	}
	return n, err
}

// handleCA tells by what remote callers know this cluster: nothing of it is a secret.
func (s *Server) handleCA(w http.ResponseWriter, _ *http.Request) {
	reply(w, client.APIServer{Cluster: s.config.Cluster, ServerName: s.config.Authority.APIName(), Roots: string(s.config.Authority.Roots()), Address: s.config.Remote.Address})
}
