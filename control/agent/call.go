package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/control/peer"
	"heddle.io/heddle/control/server/client"
)

const (
	// callTime bounds a call that is made for a check, and countTime the wait for the proxy to count it, which on a busy
	// machine comes late.
	callTime, countTime = 20 * time.Second, 5 * time.Second
	// countPoll lies between two looks at what a proxy counts; it grows, for each look costs the proxy a page of metrics.
	countPoll, longestCountPoll = 10 * time.Millisecond, 500 * time.Millisecond
	// maxCallBody bounds what is read of an answer.
	maxCallBody = 1 << 20
	// maxMetrics bounds a page of metrics, which whoever has the proxy's place in its namespace may make as long as he likes;
	// of one service that was called a proxy has about 15 kB.
	maxMetrics = 16 << 20
	// callAgent is the user agent of calls that are made for a check.
	callAgent = "heddle-check"
)

// handleCall calls a service as an application of the replica would, and tells what came of it.
func (a *Agent) handleCall(w http.ResponseWriter, r *http.Request) {
	found := a.replicaOf(w, r)
	if found == nil {
		return
	}
	var request client.CallRequest
	if !read(w, r, &request) {
		return
	}
	if request.Host == "" || request.Port == 0 || found.spec.Gateway {
		refuse(w, &client.Problem{Status: http.StatusBadRequest, What: "a call needs host and port, and a replica with an application", Where: found.spec.key()})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), callTime)
	defer cancel()
	result, err := found.call(ctx, request)
	if err != nil {
		refuse(w, &client.Problem{Status: http.StatusBadGateway, What: "the call to " + request.Host + " failed", Where: found.spec.key(), Why: peer.Words(err.Error(), maxMessage, false)})
		return
	}
	// Words of whoever answered.
	result.Answer = peer.Words(result.Answer, maxMessage, false)
	answer(w, result)
}

// call makes one call and finds it in what the replica's proxy counts.
func (r *replica) call(ctx context.Context, request client.CallRequest) (client.CallResult, error) {
	who, err := r.account()
	if err != nil {
		return client.CallResult{}, err
	}
	addresses, err := r.resolve(ctx, request.Host)
	if err != nil {
		return client.CallResult{}, err
	}
	if len(addresses) == 0 {
		return client.CallResult{}, errors.New("the name has no address")
	}
	target := netip.AddrPortFrom(addresses[0], request.Port)
	captured, err := r.spec.Interception.CaptureOutbound(target, uint32(who.gid))
	if err != nil {
		return client.CallResult{}, err
	}
	c := caller{request: request, target: target.String(), uncaptured: !captured,
		dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return r.dialAsApplication(ctx, who, captured, target)
		}}
	if captured && !r.foreign() {
		c.metrics = r.metrics
	}
	result, err := c.call(ctx)
	if err != nil && !captured {
		err = fmt.Errorf("%w; the workload's annotations leave it out of capture (%s), so that it passes by its proxy, which alone knows addresses of services", err, r.spec.Interception)
	}
	return result, err
}

// metrics are those of a name that the proxy counts.
func (r *replica) metrics(ctx context.Context, name string) ([]*dto.Metric, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+adminAddress+"/stats/prometheus?usedonly", nil)
	if err != nil {
		return nil, fmt.Errorf("ask proxy: %w", err)
	}
	response, err := r.adminTransport().RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("ask proxy: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the proxy answers %s when asked for its metrics", response.Status)
	}
	return readMetrics(response.Body, name)
}

// readMetrics reads those of a name from a page of metrics, of which it takes [maxMetrics].
func readMetrics(page io.ReadCloser, name string) ([]*dto.Metric, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(http.MaxBytesReader(nil, page, maxMetrics))
	if err != nil {
		return nil, fmt.Errorf("read the proxy's metrics: %w", err)
	}
	return families[name].GetMetric(), nil
}

// caller makes one call.
type caller struct {
	request client.CallRequest
	// target is the IP and port that dial connects to.
	target string
	dial   dialer
	// metrics reads those of a name that the caller's proxy counts; nil when it does not count by identities.
	metrics func(ctx context.Context, name string) ([]*dto.Metric, error)
	// uncaptured says that the call is left out of capture, so that the proxy does not see it.
	uncaptured bool
}

func (c caller) call(ctx context.Context) (client.CallResult, error) {
	before, err := c.counts(ctx)
	if err != nil {
		return client.CallResult{}, err
	}
	result := client.CallResult{Foreign: c.metrics == nil && !c.uncaptured, Uncaptured: c.uncaptured}
	began := time.Now()
	code := ""
	switch c.request.Protocol {
	case "HTTP":
		code, err = c.http(ctx, &result)
	case "HTTP2":
		err = c.grpc(ctx, &result)
	default:
		var connection net.Conn
		if connection, err = c.tcp(ctx, &result); err == nil {
			// Until it is counted: a connection that goes at once may not be taken further.
			defer connection.Close()
		}
	}
	result.Took = time.Since(began)
	if err != nil {
		return client.CallResult{}, err
	}
	return result, c.find(ctx, before, code, &result)
}

// http sends a GET, reads the answer and returns its code.
func (c caller) http(ctx context.Context, result *client.CallResult) (code string, err error) {
	path := c.request.Path
	if path == "" {
		path = "/"
	}
	host := c.request.Host
	if c.request.Port != 80 {
		host = net.JoinHostPort(host, strconv.Itoa(int(c.request.Port)))
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+path, nil)
	if err != nil {
		return "", fmt.Errorf("path %q: %w", path, err)
	}
	request.Header.Set("User-Agent", callAgent)
	result.Did = fmt.Sprintf("GET %s at %s", path, c.target)
	transport := &http.Transport{DialContext: c.dial, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", fmt.Errorf("%s: %w", result.Did, err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, maxCallBody)); err != nil {
		return "", fmt.Errorf("%s: %s, then %w", result.Did, response.Status, err)
	}
	result.Answer = response.Status
	return strconv.Itoa(response.StatusCode), nil
}

// grpc asks for the health of the server: whatever it answers, that it does not know the service included, is an answer.
func (c caller) grpc(ctx context.Context, result *client.CallResult) error {
	connection, err := grpc.NewClient("passthrough:///"+c.target,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(callAgent), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithMaxHeaderListSize(64<<10),
		grpc.WithAuthority(net.JoinHostPort(c.request.Host, strconv.Itoa(int(c.request.Port)))),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return c.dial(ctx, "tcp", address) }))
	if err != nil {
		return err
	}
	defer connection.Close()
	result.Did = "gRPC health check at " + c.target
	health, err := healthv1.NewHealthClient(connection).Check(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		said := status.Convert(err)
		if ctx.Err() != nil {
			return fmt.Errorf("%s: no answer: %w", result.Did, err)
		}
		result.Answer = said.Code().String()
		if said.Code() != codes.Unimplemented {
			result.Answer += ": " + said.Message()
		}
		return nil
	}
	result.Answer = "OK, " + health.Status.String()
	return nil
}

// tcp connects and sends nothing: what an application makes of bytes that are not its own is not known.
func (c caller) tcp(ctx context.Context, result *client.CallResult) (net.Conn, error) {
	result.Did = "connection to " + c.target
	connection, err := c.dial(ctx, "tcp", c.target)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", result.Did, err)
	}
	// The proxy accepts before it has connected itself: whether it could is in what it counts.
	result.Answer = "opened"
	return connection, nil
}

// series of calls that the proxy made to a service: how they ended and whom they met. The code is that of HTTP.
type series struct{ code, flags, identity string }

// counts are the calls of the caller's proxy to the service so far.
func (c caller) counts(ctx context.Context) (map[series]float64, error) {
	if c.metrics == nil {
		return nil, nil
	}
	name := "istio_requests_total"
	if c.request.Protocol == "TCP" {
		name = "istio_tcp_connections_opened_total"
	}
	found, err := c.metrics(ctx, name)
	if err != nil {
		return nil, err
	}
	out := map[series]float64{}
	for _, metric := range found {
		labels := map[string]string{}
		for _, pair := range metric.GetLabel() {
			labels[pair.GetName()] = pair.GetValue()
		}
		if labels["reporter"] != "source" || labels["destination_service"] != c.request.Host {
			continue
		}
		identity := labels["destination_principal"]
		if identity == "unknown" {
			identity = ""
		}
		out[series{labels["response_code"], labels["response_flags"], identity}] += metric.GetCounter().GetValue()
	}
	return out, nil
}

// find waits until the proxy has counted the call, which for HTTP has a code. A call that it does not count is told as such.
func (c caller) find(ctx context.Context, before map[series]float64, code string, result *client.CallResult) error {
	if c.metrics == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	for pause := countPoll; ; pause = min(2*pause, longestCountPoll) {
		after, err := c.counts(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		// Of several, as under load, one that went well comes first: "-" sorts before the flags' letters.
		var more []series
		for s, n := range after {
			if n > before[s] && (code == "" || s.code == code) {
				more = append(more, s)
			}
		}
		if len(more) > 0 {
			s := slices.MinFunc(more, func(a, b series) int {
				return cmp.Or(cmp.Compare(a.flags, b.flags), cmp.Compare(a.identity, b.identity))
			})
			result.Counted, result.Flags, result.Identity = true, s.flags, s.identity
			return nil
		}
		if !wait(ctx, pause) {
			return nil
		}
	}
}
