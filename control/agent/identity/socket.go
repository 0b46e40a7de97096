package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"heddle.io/heddle/control/agent/network"
)

// maxConnections of one socket; a proxy needs two or three.
const maxConnections = 16

// maxStreams of one socket, on whatever connections; a proxy needs one per secret and one for its configuration. What is
// held of messages that a proxy never ends is this times maxRequest at the most.
const maxStreams = 64

// window is how much of a stream's messages is taken before its handler reads them, and connectionWindow of all of a
// connection's. Being set, they do not grow with what a proxy sends.
const (
	window           = 64 << 10
	connectionWindow = 1 << 20
)

// maxHead bounds the head of a call, which proxies put nothing into.
const maxHead = 16 << 10

// What a proxy may send and the controller may push in one message.
const (
	maxRequest  = 4 << 20
	maxResponse = 64 << 20
)

// Socket serves one workload's proxy.
type Socket struct {
	server   *grpc.Server
	cancel   context.CancelFunc
	relay    *relay
	streams  atomic.Int64
	refusals *Refusals
}

// Config of a socket.
type Config struct {
	// Path of the socket. Its directory exists.
	Path string
	// User and group of the proxy: no other process of the machine has it.
	User int
	// Netns is the file of the workload's network namespace: a peer outside of it is refused.
	Netns string
	// Credential whose secrets are served.
	Credential *Credential
	// Node is the identity under which the proxy's configuration is asked for.
	Node *corev3.Node
	// Controller is the socket of the controller's xDS server.
	Controller string
	// Refusals counts what is refused.
	Refusals *Refusals
	Log      *slog.Logger
}

// Listen serves until Close. A socket file left by an earlier agent is replaced.
func Listen(config Config) (*Socket, error) {
	if err := os.Remove(config.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replace socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: config.Path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("serve identity: %w", err)
	}
	if err := errors.Join(os.Chown(config.Path, config.User, config.User), os.Chmod(config.Path, 0o600)); err != nil {
		listener.Close()
		return nil, fmt.Errorf("guard socket: %w", err)
	}
	namespace, err := network.Inode(config.Netns)
	if err != nil {
		listener.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Socket{cancel: cancel, refusals: config.Refusals}
	s.relay, err = newRelay(config)
	if err != nil {
		cancel()
		listener.Close()
		return nil, err
	}
	s.server = grpc.NewServer(
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxHeaderListSize(maxHead),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(connectionWindow),
		grpc.MaxConcurrentStreams(maxStreams), grpc.InTapHandle(s.takeStream),
		grpc.StreamInterceptor(boundSecretRequests(config.Refusals)), grpc.ForceServerCodecV2(boundingCodec{encoding.GetCodecV2("proto")}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	secretv3.RegisterSecretDiscoveryServiceServer(s.server, serverv3.NewServer(ctx, config.Credential.secrets, config.Credential.delivered.callbacks(newSecretRequests(config.Refusals))))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s.server, s.relay)
	securityv1alpha1.RegisterIstioCertificateServiceServer(s.server, newIstio(config.Credential, config.Log, config.Refusals))
	guarded := &guardedListener{UnixListener: listener, user: config.User, namespace: namespace, slots: make(chan struct{}, maxConnections), refusals: config.Refusals, log: config.Log}
	// Ends when the server stops.
	go func() { _ = s.server.Serve(guarded) }()
	return s, nil
}

// takeStream has a call wait for none of its messages where the socket has as many as it may have.
func (s *Socket) takeStream(ctx context.Context, _ *tap.Info) (context.Context, error) {
	if s.streams.Add(1) > maxStreams {
		s.streams.Add(-1)
		s.refusals.streams.Add(1)
		return ctx, status.Errorf(codes.ResourceExhausted, "the proxy has %d streams already", maxStreams)
	}
	context.AfterFunc(ctx, func() { s.streams.Add(-1) })
	return ctx, nil
}

// Connected says whether the proxy has a configuration stream to the controller now; the channel is closed when that may be
// otherwise.
func (s *Socket) Connected() (bool, <-chan struct{}) { return s.relay.streams.now() }

// Close stops serving and removes the socket.
func (s *Socket) Close() {
	s.cancel()
	s.server.Stop()
	s.relay.close()
}

// guardedListener accepts only the proxy's user from inside the workload's network namespace, and root from where the agent
// is: a workload that runs as root is in another namespace of processes.
type guardedListener struct {
	*net.UnixListener
	user      int
	namespace uint64
	slots     chan struct{}
	refusals  *Refusals
	log       *slog.Logger
}

func (l *guardedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if err := l.admit(c); err != nil {
			l.refusals.peers.Add(1)
			l.log.Warn("identity refused", "error", err)
			c.Close()
			continue
		}
		select {
		case l.slots <- struct{}{}:
			return &slottedConn{UnixConn: c, slots: l.slots}, nil
		default:
			l.refusals.connections.Add(1)
			c.Close()
		}
	}
}

func (l *guardedListener) admit(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("look at peer: %w", err)
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || peerErr != nil {
		return fmt.Errorf("look at peer: %w", errors.Join(err, peerErr))
	}
	if peer.Uid == 0 {
		return machines(peer.Pid)
	}
	if int(peer.Uid) != l.user {
		return fmt.Errorf("peer runs as user %d, not as the proxy's user %d", peer.Uid, l.user)
	}
	namespace, err := network.Inode(fmt.Sprintf("/proc/%d/ns/net", peer.Pid))
	if err != nil {
		return err
	}
	if namespace != l.namespace {
		return fmt.Errorf("process %d is not in this workload's network namespace", peer.Pid)
	}
	return nil
}

// machines says whether a process is one of the machine's, not of a sandbox.
func machines(pid int32) error {
	theirs, err := network.Inode(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return err
	}
	own, err := network.Inode("/proc/self/ns/pid")
	if err != nil {
		return err
	}
	if theirs != own {
		return fmt.Errorf("process %d runs as root of a sandbox", pid)
	}
	return nil
}

type slottedConn struct {
	*net.UnixConn
	slots  chan struct{}
	closed atomic.Bool
}

func (c *slottedConn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		<-c.slots
	}
	return c.UnixConn.Close()
}
