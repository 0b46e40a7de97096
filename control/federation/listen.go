package federation

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"

	pb "heddle.io/heddle/api/federation/federationv1"
)

// Bounds of the federation port. Whoever reaches the gateways reaches it, so all of them hold before anybody is known.
const (
	// maxHandshakes are under way at a time, maxStrangers are connected without a certificate, each for strangerTime at
	// the most, and maxPerMember are connections of one member. One more takes the place of another, see seats.
	maxHandshakes = 64
	maxStrangers  = 32
	strangerTime  = time.Minute
	maxPerMember  = 4
	// maxFromMember bounds one message; longer ones come in parts.
	maxFromMember = 1 << 20
	// maxCalls run on one connection at a time.
	maxCalls = 4
)

// listenLoop serves other controllers. The address exists only once the agent made the bridge, so opening it is tried
// until it succeeds, and again if it should ever be lost.
func (f *Federation) listenLoop(ctx context.Context) {
	for ctx.Err() == nil {
		listener, err := f.config.Listen()
		if err == nil {
			f.config.Log.Info("listening for other controllers", "address", listener.Addr().String())
			f.setDeaf("")
			err = f.serve(ctx, listener)
		}
		if ctx.Err() != nil {
			return
		}
		f.setDeaf(err.Error())
		f.config.Log.Debug("not listening for other controllers", "error", err)
		if !wait(ctx, f.config.Pace.Listen, nil) {
			return
		}
	}
}

func (f *Federation) setDeaf(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listenError = why
}

func (f *Federation) serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(
		grpc.Creds(newAdmission(f)), grpc.ConnectionTimeout(handshakeTimeout), grpc.MaxRecvMsgSize(maxFromMember),
		grpc.MaxConcurrentStreams(maxCalls), grpc.MaxHeaderListSize(16<<10), grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: strangerTime}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second}),
	)
	pb.RegisterFederationServer(server, &service{f: f})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	err := server.Serve(listener)
	// Its handlers may still run.
	server.Stop()
	if err == nil {
		err = errors.New("the listener was closed")
	}
	return err
}

// tlsConfig shows this controller's certificate, and checks the caller's if it has one.
func (f *Federation) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{alpn},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			certificate, err := f.config.Authority.Controller()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: []string{alpn}, Certificates: []tls.Certificate{*certificate},
				ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: f.config.Authority.MeshPool(), Time: f.config.Now,
				// A resumed session would skip the check of the certificate.
				SessionTicketsDisabled: true,
			}, nil
		},
	}
}

// admission lets connections in, in bounds: it is TLS that counts.
type admission struct {
	credentials.TransportCredentials
	f          *Federation
	handshakes *seats
	strangers  *seats

	mu      sync.Mutex
	members map[peerOf]*seats
}

func newAdmission(f *Federation) *admission {
	return &admission{TransportCredentials: credentials.NewTLS(f.tlsConfig()), f: f, handshakes: newSeats(maxHandshakes), strangers: newSeats(maxStrangers), members: map[peerOf]*seats{}}
}

// admitted is a caller's connection: what TLS says of it, and how to end it.
type admitted struct {
	credentials.TLSInfo
	conn net.Conn
}

// ServerHandshake implements [credentials.TransportCredentials].
func (a *admission) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	a.f.counters.add(countConnections)
	conn := newSeat(raw, a.f.config.Now)
	a.evict(a.handshakes.take(conn))
	defer a.handshakes.leave(conn)
	secured, info, err := a.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		a.f.counters.add(countHandshakesFailed)
		return nil, nil, err
	}
	tlsInfo, ok := info.(credentials.TLSInfo)
	if !ok {
		secured.Close()
		return nil, nil, errors.New("not a TLS connection")
	}
	var who peerOf
	if chains := tlsInfo.State.VerifiedChains; len(chains) > 0 {
		if known, err := identify(chains, a.f.config.Settings.TrustDomain); err == nil {
			who = known
		}
	}
	counted := &countedConn{Conn: secured, leave: a.enter(who, conn)}
	if who == (peerOf{}) {
		counted.timer = time.AfterFunc(strangerTime, func() { _ = counted.Close() })
	}
	return counted, &admitted{TLSInfo: tlsInfo, conn: counted}, nil
}

// Clone implements [credentials.TransportCredentials]; the bounds are shared.
func (a *admission) Clone() credentials.TransportCredentials { return a }

// enter gives a connection of a cluster, or of a stranger, its place, and returns what gives the place back. A cluster that was
// removed has a certificate still, and so places of its own: those of the one that has its name now are another membership's.
func (a *admission) enter(who peerOf, conn *seat) (leave func()) {
	if who == (peerOf{}) {
		a.evict(a.strangers.take(conn))
		return func() { a.strangers.leave(conn) }
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	own := a.members[who]
	if own == nil {
		own = newSeats(maxPerMember)
		a.members[who] = own
	}
	a.evict(own.take(conn))
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if own.leave(conn) == 0 && a.members[who] == own {
			delete(a.members, who)
		}
	}
}

// evict ends a connection whose place was taken. What reads from it ends, and gives up what else it holds.
func (a *admission) evict(s *seat) {
	if s != nil {
		a.f.counters.add(countConnectionsRefused)
		_ = s.Close()
	}
}

// countedConn is a connection that gives its place back when it is closed.
type countedConn struct {
	net.Conn
	once  sync.Once
	leave func()
	timer *time.Timer
}

// Close implements [net.Conn].
func (g *countedConn) Close() error {
	g.once.Do(func() {
		if g.timer != nil {
			g.timer.Stop()
		}
		g.leave()
	})
	return g.Conn.Close()
}

// callerOf is the connection of a call.
func callerOf(ctx context.Context) (*admitted, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, false
	}
	a, ok := p.AuthInfo.(*admitted)
	return a, ok
}
