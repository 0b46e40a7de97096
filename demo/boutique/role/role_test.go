package role

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func environment(values map[string]string, listening func(net.Addr)) Env {
	return Env{Getenv: func(name string) string { return values[name] }, Log: slog.New(slog.DiscardHandler), Host: "host", Listening: listening}
}

// slowService has one method, which lasts until it is released, or panics when
// the request says so.
func slowService(begun chan<- struct{}, release <-chan struct{}) *grpc.ServiceDesc {
	desc := &grpc.ServiceDesc{ServiceName: "test.Slow", HandlerType: (*any)(nil)}
	desc.Methods = []grpc.MethodDesc{{MethodName: "Wait", Handler: func(_ any, ctx context.Context, decode func(any) error, through grpc.UnaryServerInterceptor) (any, error) {
		request := &healthv1.HealthCheckRequest{}
		if err := decode(request); err != nil {
			return nil, err
		}
		return through(ctx, request, &grpc.UnaryServerInfo{FullMethod: "/test.Slow/Wait"}, func(context.Context, any) (any, error) {
			if request.Service == "panic" {
				panic("as asked")
			}
			close(begun)
			<-release
			return &healthv1.HealthCheckResponse{}, nil
		})
	}}}
	return desc
}

func TestARequestThatHasBegunIsAnsweredBeforeTheEnd(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	listening, ended := make(chan net.Addr, 1), make(chan error, 1)
	ctx, end := context.WithCancel(t.Context())
	env := environment(map[string]string{"PORT": "0", "LISTEN_HOST": "127.0.0.1"}, func(a net.Addr) { listening <- a })
	go func() {
		ended <- ServeGRPC(ctx, env, "slow", 1, func(s *grpc.Server) { s.RegisterService(slowService(begun, release), nil) })
	}()
	conn, err := Dial("tests", "slow", (<-listening).String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if reply, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: "test.Slow"}); err != nil || reply.Status != healthv1.HealthCheckResponse_SERVING {
		t.Fatalf("health: %v, %v", reply, err)
	}
	err = conn.Invoke(t.Context(), "/test.Slow/Wait", &healthv1.HealthCheckRequest{Service: "panic"}, &healthv1.HealthCheckResponse{})
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "as asked") {
		t.Errorf("a panic was answered with %v", err)
	}
	answered := make(chan error, 1)
	go func() {
		answered <- conn.Invoke(t.Context(), "/test.Slow/Wait", &healthv1.HealthCheckRequest{}, &healthv1.HealthCheckResponse{})
	}()
	<-begun
	end()
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("the request that had begun: %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("ServeGRPC: %v", err)
	}
}

func TestBadSettingsAreNamed(t *testing.T) {
	for _, port := range []string{"-1", "65536", "http", "1 2"} {
		if _, err := environment(map[string]string{"PORT": port}, nil).Listen(1); err == nil || !strings.Contains(err.Error(), "PORT") {
			t.Errorf("PORT=%s: %v", port, err)
		}
	}
	dial := NewDialer(environment(map[string]string{"CART_SERVICE_ADDR": "cartservice"}, nil), "frontend")
	dial.To("cartservice", "CART_SERVICE_ADDR", "cartservice:7070")
	if err := dial.Err(); err == nil || !strings.Contains(err.Error(), "CART_SERVICE_ADDR") || !strings.Contains(err.Error(), "host:port") {
		t.Errorf("an address without a port: %v", err)
	}
}

func TestNumber(t *testing.T) {
	if got, err := Number(strings.NewReader("abcdefgh"), "LS", 2); err != nil || got != "LS-1234-5678" {
		t.Errorf("Number = %q, %v", got, err)
	}
	if _, err := Number(strings.NewReader("abc"), "LS", 2); err == nil {
		t.Error("a number was made of too little randomness")
	}
}
