package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"heddle.io/heddle/api/v1alpha1"
)

// dialer connects from where the probe is to be made: inside the replica's network namespace.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// probe asks once whether the application is ready.
func probe(ctx context.Context, dial dialer, address netip.Addr, readiness *v1alpha1.Readiness) error {
	target := func(port int32) string { return net.JoinHostPort(address.String(), strconv.Itoa(int(port))) }
	switch {
	case readiness == nil:
		return nil
	case readiness.TCP != nil:
		connection, err := dial(ctx, "tcp", target(readiness.TCP.Port))
		if err != nil {
			return err
		}
		return connection.Close()
	case readiness.HTTP != nil:
		return probeHTTP(ctx, dial, target(readiness.HTTP.Port), readiness.HTTP.Path)
	case readiness.GRPC != nil:
		return probeGRPC(ctx, dial, target(readiness.GRPC.Port), readiness.GRPC.Service)
	}
	return errors.New("readiness names no probe; set tcp, http or grpc")
}

// steady is an error in words that are the same each time: without the port that this connection came from, which each probe has another of.
func steady(err error) string {
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Source != nil {
		one := *op
		one.Source = nil
		return one.Error()
	}
	return err.Error()
}

func probeHTTP(ctx context.Context, dial dialer, target, path string) error {
	if path == "" {
		path = "/"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+target+path, nil)
	if err != nil {
		return fmt.Errorf("readiness path %q: %w", path, err)
	}
	request.Header.Set("User-Agent", "heddle-probe")
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}
	defer transport.CloseIdleConnections()
	// Redirects are answers, not places to go.
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode > 399 {
		return fmt.Errorf("GET %s answered %s", path, response.Status)
	}
	return nil
}

func probeGRPC(ctx context.Context, dial dialer, target, service string) error {
	connection, err := grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithMaxHeaderListSize(64<<10),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }))
	if err != nil {
		return err
	}
	defer connection.Close()
	answer, err := healthv1.NewHealthClient(connection).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
	if err != nil {
		return err
	}
	if answer.Status != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("health of %q is %s", service, answer.Status)
	}
	return nil
}

// thresholds turns single probe results into a state, as Kubernetes counts them.
type thresholds struct {
	success, failure int
	inARow           int
	last             bool
	ready            bool
}

func newThresholds(r *v1alpha1.Readiness) *thresholds {
	t := &thresholds{success: 1, failure: 3}
	if r != nil && r.SuccessThreshold > 0 {
		t.success = int(r.SuccessThreshold)
	}
	if r != nil && r.FailureThreshold > 0 {
		t.failure = int(r.FailureThreshold)
	}
	return t
}

// add counts a result and returns the state.
func (t *thresholds) add(ok bool) bool {
	if ok != t.last || t.inARow == 0 {
		t.inARow, t.last = 0, ok
	}
	t.inARow++
	switch {
	case ok && t.inARow >= t.success:
		t.ready = true
	case !ok && t.inARow >= t.failure:
		t.ready = false
	}
	return t.ready
}

// timing of a probe with its defaults.
func timing(r *v1alpha1.Readiness) (delay, period, timeout time.Duration) {
	period, timeout = time.Second, time.Second
	if r == nil {
		return 0, period, timeout
	}
	if r.PeriodSeconds > 0 {
		period = time.Duration(r.PeriodSeconds) * time.Second
	}
	if r.TimeoutSeconds > 0 {
		timeout = time.Duration(r.TimeoutSeconds) * time.Second
	}
	return time.Duration(r.InitialDelaySeconds) * time.Second, period, timeout
}
