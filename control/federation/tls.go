package federation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/server/client"
)

// Waits of one connection.
const (
	dialTimeout      = 5 * time.Second
	handshakeTimeout = 5 * time.Second
	callTimeout      = 10 * time.Second
)

// patience is how long to wait for a connection, and for its handshake.
type patience struct{ dial, handshake time.Duration }

// human is the patience of who joins, once.
var human = patience{dialTimeout, handshakeTimeout}

// maxSkew is how far apart the clocks of two clusters may be.
const maxSkew = time.Minute

// alpn is what gRPC speaks over TLS.
const alpn = "h2"

// dialFunc connects, as [net.Dialer.DialContext] does.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// peerOf is who a verified certificate chain belongs to.
type peerOf struct {
	cluster string
	// primary says that it holds the mesh's root.
	primary bool
	// membership, on members, is the hash of the key that the cluster joined with.
	membership string
}

// verify checks a controller's certificate chain (leaf first) against the roots as of a time.
func verify(chain []*x509.Certificate, roots *x509.CertPool, at time.Time, trustDomain string, usage x509.ExtKeyUsage) (peerOf, error) {
	if len(chain) == 0 {
		return peerOf{}, errors.New("it shows no certificate")
	}
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	verified, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return peerOf{}, err
	}
	return identify(verified, trustDomain)
}

// identify reads verified chains: leaf, intermediate, root. While the mesh changes its root to one that the previous root has
// signed too, there may be a longer one beside.
func identify(verified [][]*x509.Certificate, trustDomain string) (peerOf, error) {
	i := slices.IndexFunc(verified, func(chain []*x509.Certificate) bool { return len(chain) == 3 })
	if i < 0 {
		return peerOf{}, errors.New("its chain is not one of leaf, intermediate and root")
	}
	chain := verified[i]
	of, err := ca.ControllerOf(chain[0], chain[1], trustDomain)
	if err != nil {
		return peerOf{}, err
	}
	return peerOf{cluster: of.Cluster, primary: ca.IsPrimary(chain[0], trustDomain), membership: of.Membership}, nil
}

// validSometime is a moment at which all certificates of a chain are valid, if there is one: whether they are valid now
// is another question than who signed them.
func validSometime(chain []*x509.Certificate) time.Time {
	var latest time.Time
	for _, c := range chain {
		if c.NotBefore.After(latest) {
			latest = c.NotBefore
		}
	}
	return latest
}

// rootOf finds the root with that hash in a chain that a peer shows.
func rootOf(chain []*x509.Certificate, rootHash string) *x509.CertPool {
	i := slices.IndexFunc(chain, func(c *x509.Certificate) bool { return ca.KeyHash(c) == rootHash && c.IsCA })
	if i < 0 {
		return nil
	}
	pool := x509.NewCertPool()
	pool.AddCert(chain[i])
	return pool
}

// connect opens a TLS connection to the federation endpoint at an address. check looks at the certificates that the peer
// shows; its error becomes a problem as it is. Everything is bounded.
func connect(ctx context.Context, dial dialFunc, p patience, address, trustDomain string, certificate *tls.Certificate, check func([]*x509.Certificate) error) (*tls.Conn, error) {
	dialing, cancel := context.WithTimeout(ctx, p.dial)
	defer cancel()
	raw, err := dial(dialing, "tcp", address)
	if err != nil {
		why := err.Error()
		if errors.Is(err, context.DeadlineExceeded) {
			why = fmt.Sprintf("no answer within %s", p.dial)
		}
		return nil, &client.Problem{Status: http.StatusBadGateway, What: "the primary cannot be reached", Where: address, Why: clip(why),
			Remedy: "check the address that `heddle cluster token` prints, the route to it, and firewalls on the way (TCP port 15443)"}
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: cluster.FederationName(trustDomain), NextProtos: []string{alpn},
		// Whose certificate is good depends on more than Go's own check knows; ours is below.
		InsecureSkipVerify: true,
		VerifyConnection:   func(s tls.ConnectionState) error { return check(s.PeerCertificates) },
	}
	if certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	shaking, cancel := context.WithTimeout(ctx, p.handshake)
	defer cancel()
	conn := tls.Client(raw, config)
	err = conn.HandshakeContext(shaking)
	if err == nil && conn.ConnectionState().NegotiatedProtocol != alpn {
		err = errors.New("it does not speak HTTP/2")
	}
	if err != nil {
		raw.Close()
		var ready *client.Problem
		if errors.As(err, &ready) {
			return nil, ready
		}
		return nil, &client.Problem{Status: http.StatusBadGateway, What: "nobody answers there as the primary of a mesh", Where: address, Why: clip(err.Error()),
			Remedy: "check the address that `heddle cluster token` prints; its east-west gateways and its controller must run"}
	}
	return conn, nil
}

// maxFromPrimary bounds one message from the primary: an object of the largest size, and room.
const maxFromPrimary = 20 << 20

// overConn makes a gRPC client of one open connection. It never dials: when the connection is gone, calls fail.
func overConn(conn net.Conn) (*grpc.ClientConn, error) {
	once := make(chan net.Conn, 1)
	once <- conn
	return grpc.NewClient("passthrough:///federation",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // It is TLS already.
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-once:
				return c, nil
			default:
				return nil, errors.New("the connection was lost")
			}
		}),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxFromPrimary)), grpc.WithMaxHeaderListSize(64<<10))
}
