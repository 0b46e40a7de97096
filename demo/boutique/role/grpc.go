package role

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/identity"
)

const (
	// DrainTime is how long a role that was told to end waits for the requests
	// it has begun. Shorter than the ten seconds a supervisor usually grants.
	DrainTime = 8 * time.Second
	// CallTime is the deadline of a call to a peer. Peers answer within
	// milliseconds; the rest is for a proxy that is just opening connections.
	CallTime = 3 * time.Second
	// maxMessage bounds a request or reply; the largest, the catalogue, is a
	// hundredth of it.
	maxMessage = 1 << 20
	// maxHeaders bounds the metadata of a request; the forwarded certificate
	// is the longest.
	maxHeaders = 32 << 10
)

// NewServer returns a gRPC server with what each role has: the health service,
// the echo of the caller's identity, and replies instead of crashes.
func NewServer(env Env, name string) (*grpc.Server, *health.Server) {
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ChainUnaryInterceptor(identity.EchoClient(env.ServedBy(name)), survive(env.Log)),
	)
	checks := health.NewServer()
	healthv1.RegisterHealthServer(server, checks)
	return server, checks
}

// survive turns a panic into INTERNAL: one bad request must not end the others.
func survive(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (reply any, err error) {
		defer func() {
			if cause := recover(); cause != nil {
				log.Error("request panicked", "method", info.FullMethod, "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
				err = status.Error(codes.Internal, "internal error; the service's log has the cause")
			}
		}()
		return handle(ctx, request)
	}
}

// ServeGRPC runs a gRPC role until ctx ends: register adds the role's service to
// the server. It then reports NOT_SERVING, waits up to DrainTime for requests
// that have begun, and returns nil.
func ServeGRPC(ctx context.Context, env Env, name string, port int, register func(*grpc.Server)) error {
	server, checks := NewServer(env, name)
	register(server)
	for service := range server.GetServiceInfo() {
		checks.SetServingStatus(service, healthv1.HealthCheckResponse_SERVING)
	}
	listener, err := env.Listen(port)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	env.Log.Info("listening", "address", listener.Addr().String())
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("%s: serve on %s: %w", name, listener.Addr(), err)
	case <-ctx.Done():
	}
	checks.Shutdown()
	impatient := time.AfterFunc(DrainTime, server.Stop)
	server.GracefulStop()
	impatient.Stop()
	env.Log.Info("ended")
	return nil
}

// Dial prepares the connection to a peer role. Nothing is sent yet, so a peer
// that is absent shows only when it is called, as UNAVAILABLE. Requests are
// never repeated, neither by configuration nor by us: what the shopper sees is
// what the mesh did.
func Dial(caller, service, address string) (*grpc.ClientConn, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("%s: address of %s: %q is not host:port: %w", caller, service, address, err)
	}
	// passthrough leaves the name to the dialer, which asks the resolver anew at
	// each connection: a name that appears or moves is followed at once.
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			// gRPC's default grows to two minutes, too long for a shopper to
			// wait after a service has come back.
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: CallTime,
		}),
		grpc.WithChainUnaryInterceptor(identity.RecordCalls(caller, service)),
	)
	if err != nil {
		return nil, fmt.Errorf("%s: prepare the connection to %s at %s: %w", caller, service, address, err)
	}
	return conn, nil
}

// Dialer opens the connections of one role and closes them together.
type Dialer struct {
	env    Env
	caller string
	conns  []*grpc.ClientConn
	errs   []error
}

// NewDialer returns a Dialer for the role.
func NewDialer(env Env, caller string) *Dialer { return &Dialer{env: env, caller: caller} }

// To prepares the connection to a role at the address in the variable, or at
// the fallback. An error waits for Err.
func (d *Dialer) To(service, variable, fallback string) *grpc.ClientConn {
	conn, err := Dial(d.caller, service, d.env.Address(variable, fallback))
	if err != nil {
		d.errs = append(d.errs, fmt.Errorf("environment variable %s: %w", variable, err))
		return nil
	}
	d.conns = append(d.conns, conn)
	return conn
}

// Err returns what was wrong with the addresses, nil when nothing was.
func (d *Dialer) Err() error { return errors.Join(d.errs...) }

// Close closes all connections.
func (d *Dialer) Close() {
	for _, conn := range d.conns {
		_ = conn.Close() // the process is ending; there is nobody to tell
	}
}
