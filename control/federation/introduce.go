package federation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/server/client"
)

// JoinAddress completes the address of a primary, host, host:port or [ipv6]:port, by the default port, or says that it is none.
func JoinAddress(text string) (string, error) {
	text = strings.TrimSpace(text)
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"), strconv.Itoa(cluster.PortEastWest)
	}
	number, portErr := strconv.ParseUint(port, 10, 16)
	_, ipErr := netip.ParseAddr(host)
	if host == "" || portErr != nil || number == 0 || strings.ContainsAny(host, " /@[]") || strings.Contains(host, ":") && ipErr != nil {
		return "", &client.Problem{Status: http.StatusBadRequest, What: fmt.Sprintf("%q is not an address", clip(text)),
			Remedy: "give host, host:port or [IPv6 address]:port, as `heddle cluster token` prints it at the primary"}
	}
	return net.JoinHostPort(host, port), nil
}

// stranger is one who is no member yet and calls a primary of which it knows the root's hash.
type stranger struct {
	cluster     cluster.Cluster
	trustDomain string
	version     string
	dial        dialFunc
	now         func() time.Time
}

// introduction is a connection to the primary of the mesh with the wanted root, which has said what there is to know.
type introduction struct {
	conn  *tls.Conn
	rpc   *grpc.ClientConn
	api   pb.FederationClient
	hello *pb.HelloResponse
}

func (i *introduction) close() {
	// Both: the first does not know of the second when it was never used.
	_ = i.rpc.Close()
	_ = i.conn.Close()
}

// introduce connects to the primary and makes sure that it is the wanted one, that both speak the same protocol and that
// their clocks agree. No secret has been sent when it returns. Every error is a [*client.Problem].
func (s stranger) introduce(ctx context.Context, address, rootHash string) (*introduction, error) {
	var chain []*x509.Certificate
	var roots *x509.CertPool
	var peer peerOf
	conn, err := connect(ctx, s.dial, human, address, s.trustDomain, nil, func(shown []*x509.Certificate) error {
		impostor := func(why string) error {
			return &client.Problem{Status: http.StatusForbidden, What: "this is not the primary that the token was made by", Where: address, Why: why,
				Remedy: "nothing was told to it; check the address, and make a new token at the primary if its mesh was made anew"}
		}
		chain = shown
		if roots = rootOf(chain, rootHash); roots == nil {
			return impostor("its root key has another hash than the token says")
		}
		var err error
		// Who it is comes before what time it is: with clocks apart, the one must not look like the other.
		if peer, err = verify(chain, roots, validSometime(chain), s.trustDomain, x509.ExtKeyUsageServerAuth); err != nil {
			return impostor(clip(err.Error()))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	rpc, err := overConn(conn)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("call the primary: %w", err)
	}
	i := &introduction{conn: conn, rpc: rpc, api: pb.NewFederationClient(rpc)}
	if err := s.greet(ctx, i, address, peer); err != nil {
		i.close()
		return nil, err
	}
	if _, err := verify(chain, roots, s.now(), s.trustDomain, x509.ExtKeyUsageServerAuth); err != nil {
		i.close()
		return nil, &client.Problem{Status: http.StatusBadGateway, What: "the primary's certificate is not valid now", Where: address, Why: clip(err.Error()),
			Remedy: "correct the clocks of both sides; the primary renews its certificates by itself"}
	}
	return i, nil
}

// greet says hello and judges the answer.
func (s stranger) greet(ctx context.Context, i *introduction, address string, peer peerOf) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	before := s.now()
	hello, err := i.api.Hello(ctx, &pb.HelloRequest{Protocol: newestProtocol, Version: s.version})
	after := s.now()
	if err != nil {
		return problem(err, address)
	}
	i.hello = hello
	if newestProtocol < hello.GetOldest() || oldestProtocol > hello.GetNewest() {
		return &client.Problem{Status: http.StatusConflict, What: "the clusters' versions do not fit together", Where: address,
			Why: fmt.Sprintf("the primary speaks federation protocol %s (heddle %s), this program %s (heddle %s)", protocolRange(hello.GetOldest(), hello.GetNewest()),
				clip(hello.GetVersion()), protocolRange(oldestProtocol, newestProtocol), s.version),
			Remedy: "use the same version of heddle on both sides"}
	}
	if !peer.primary || hello.GetCluster() != hello.GetPrimary() {
		return &client.Problem{Status: http.StatusConflict, What: fmt.Sprintf("%s is not the primary of its mesh", peer.cluster), Where: address,
			Why:    fmt.Sprintf("it is a member of the mesh of %s", clip(hello.GetPrimary())),
			Remedy: fmt.Sprintf("join %s, at %s", clip(hello.GetPrimary()), clip(hello.GetPrimaryAddress()))}
	}
	if hello.GetTrustDomain() != s.trustDomain {
		return &client.Problem{Status: http.StatusConflict, What: "the trust domains differ", Where: address,
			Why: fmt.Sprintf("the primary's is %s, this cluster's %s", clip(hello.GetTrustDomain()), s.trustDomain), Remedy: "only clusters of one trust domain can be a mesh"}
	}
	theirs := time.Unix(0, hello.GetTime()).UTC()
	ours := before.Add(after.Sub(before) / 2).UTC()
	if apart := theirs.Sub(ours).Abs(); apart > maxSkew {
		return &client.Problem{Status: http.StatusConflict, What: "the clocks are apart", Where: address,
			Why: fmt.Sprintf("it is %s at the primary and %s here: %s apart, at most %s are possible", theirs.Format(time.RFC3339), ours.Format(time.RFC3339),
				apart.Round(time.Second), maxSkew), Remedy: "set both by NTP, for example with `timedatectl set-ntp true`"}
	}
	return nil
}

// hashOf is the root hash in PEM text.
func hashOf(rootPEM []byte) (string, error) {
	root, err := ca.ParseRoot(rootPEM)
	if err != nil {
		return "", err
	}
	return ca.KeyHash(root), nil
}
