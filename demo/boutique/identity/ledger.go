package identity

import (
	"context"
	"path"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
)

// Ledger collects the calls made for one request, in order of their ends. It is
// safe for use by several goroutines.
type Ledger struct {
	mu   sync.Mutex
	hops []*boutiquev1.Hop
}

// Add appends hops, for instance those a called role returned.
func (l *Ledger) Add(hops ...*boutiquev1.Hop) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hops = append(l.hops, hops...)
}

// Hops returns what was collected so far.
func (l *Ledger) Hops() []*boutiquev1.Hop {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.hops)
}

type ledgerKey struct{}

// WithLedger returns a context whose calls are collected in the ledger.
func WithLedger(ctx context.Context, ledger *Ledger) context.Context {
	return context.WithValue(ctx, ledgerKey{}, ledger)
}

// RecordCalls returns a client interceptor that writes each call of a context
// with a Ledger into it. caller and service are the roles at the two ends.
func RecordCalls(caller, service string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		ledger, _ := ctx.Value(ledgerKey{}).(*Ledger)
		if ledger == nil {
			return invoke(ctx, method, request, reply, conn, options...)
		}
		var header, trailer metadata.MD
		err := invoke(ctx, method, request, reply, conn, append(options, grpc.Header(&header), grpc.Trailer(&trailer))...)
		// A server that fails before it has sent anything answers with
		// trailers only, and the headers then arrive among them.
		seen := metadata.Join(header, trailer)
		forwarded := ParseForwarded(first(seen, HeaderClient))
		ledger.Add(&boutiquev1.Hop{
			Caller:         caller,
			Service:        service,
			Method:         path.Base(method),
			ClientIdentity: forwarded.Client,
			ServerIdentity: forwarded.Server,
			ServedBy:       first(seen, HeaderServedBy),
			Status:         status.Code(err).String(),
			ClientCluster:  forwarded.ClientCluster,
		})
		return err
	}
}

func first(md metadata.MD, key string) string {
	if values := md.Get(key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// EchoClient returns a server interceptor that tells the client what the server
// saw of it; servedBy is the value of HeaderServedBy.
func EchoClient(servedBy string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		incoming, _ := metadata.FromIncomingContext(ctx)
		// Failing means that the stream is gone, which the handler finds out.
		_ = grpc.SetHeader(ctx, metadata.Pairs(
			HeaderClient, Echo(incoming.Get(HeaderForwarded)),
			HeaderServedBy, servedBy,
		))
		return handle(ctx, request)
	}
}
