package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/seal"
)

// External names a cluster of etcd members that somebody else runs.
type External struct {
	// Endpoints are the members' client URLs, https://host:port.
	Endpoints []string
	// CACert is the file of the PEM certificates that sign the members'; Cert and Key are files of this client's own.
	CACert, Cert, Key string
	// Cluster is whose objects these are: several may share an etcd cluster.
	Cluster string
}

// ExternalOf is what a cluster's options name.
func ExternalOf(name string, o cluster.Etcd) External {
	return External{Endpoints: strings.Split(o.Endpoints, ","), CACert: o.CACert, Cert: o.Cert, Key: o.Key, Cluster: name}
}

// Check reads the files.
func (e External) Check() error {
	_, err := e.tls()
	return err
}

const (
	// dialLimit bounds the wait for a first answer, and the look at what is there.
	dialLimit = 10 * time.Second
	// requestLimit bounds a request whose caller sets no limit: a member that is cut off must not hold it for ever. An
	// election takes a second or two.
	requestLimit = 10 * time.Second
	// keepAlive finds members that vanished without a word.
	keepAlive = 5 * time.Second
)

// OpenExternal opens the store on an external cluster, which seals Secrets with the keys.
func OpenExternal(ctx context.Context, keys *seal.Ring, external External) (*Store, error) {
	config, err := external.tls()
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: external.Endpoints, TLS: config, DialTimeout: dialLimit, DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAlive,
		PermitWithoutStream: true, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}})},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %v: %w", external.Endpoints, err)
	}
	prefix := "/clusters/" + external.Cluster
	client.KV, client.Watcher = namespace.NewKV(client.KV, prefix), namespace.NewWatcher(client.Watcher, prefix)
	s := &Store{client: client, keys: keys, endpoints: external.Endpoints, limit: requestLimit, prefix: prefix}
	opened, err := s.opened(ctx, dialLimit, func(ctx context.Context, endpoint string) error {
		_, err := client.Defragment(ctx, endpoint)
		return err
	})
	if errors.Is(err, errFirstKey) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("etcd at %v: %w; check that a majority of its members runs and that the certificates fit", external.Endpoints, err)
	}
	return opened, nil
}

// tls is the configuration of the connections; there are none without TLS.
func (e External) tls() (*tls.Config, error) {
	ca, err := os.ReadFile(e.CACert)
	if err != nil {
		return nil, fmt.Errorf("certificates of etcd's authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("certificates of etcd's authority: %s holds none in PEM", e.CACert)
	}
	if _, err := tls.LoadX509KeyPair(e.Cert, e.Key); err != nil {
		return nil, fmt.Errorf("certificate for etcd: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool,
		// Read for each connection: certificates are renewed.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(e.Cert, e.Key)
			if err != nil {
				return nil, errors.Join(errors.New("certificate for etcd"), err)
			}
			return &pair, nil
		}}, nil
}
