//go:build interop

package interop

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
)

// bound of one exchange, on a busy machine.
const bound = time.Minute

// large is more than any window that a peer begins with.
const large = 5<<20 + 7

func TestInterop(t *testing.T) {
	c := start(t)
	for _, name := range []string{"origin", "envoy", "nginx", "heddle"} {
		t.Run("server "+name, func(t *testing.T) { c.exchanges(t, plainPort, name, 100_000) })
	}
	// HAProxy before 3.1 reads all streams of a connection into one buffer: uploads that wait for their answers to be taken
	// keep it from reading that they are, with any client whose windows are smaller than the answers.
	t.Run("server haproxy", func(t *testing.T) { c.exchanges(t, plainPort, "haproxy", 10_000) })
	t.Run("server nghttpd", c.nghttpd)
	t.Run("server grpc-go", func(t *testing.T) { c.grpc(t, plainPort, insecure.NewCredentials()) })
	for _, name := range []string{"envoy", "haproxy"} {
		t.Run("client "+name, func(t *testing.T) {
			c.exchanges(t, clients[name], "origin", 100_000)
			c.grpc(t, clients[name], insecure.NewCredentials())
		})
	}
	t.Run("client nginx", func(t *testing.T) { c.grpc(t, clients["nginx"], insecure.NewCredentials()) })
	t.Run("client grpc-go over TLS", func(t *testing.T) {
		// The certificate is made for the run; who answers is no subject here.
		c.grpc(t, tlsPort, credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, ServerName: "grpc"})) //nolint:gosec // See above.
	})
	t.Run("client curl", c.curl)
	t.Run("client nghttp", c.nghttp)
	t.Run("client h2load", c.h2load)
	t.Run("client Chromium", c.chromium)
}

// exchanges sends requests of all shapes by Go's client to a port, for an authority; many at once are of that size.
func (c *chain) exchanges(t *testing.T, port int, authority string, many int) {
	transport := &http.Transport{Protocols: priorKnowledge(), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", c.at(port))
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: bound}
	for _, size := range []int{0, 1, 65535, 65536, large} {
		t.Run("GET "+strconv.Itoa(size), func(t *testing.T) {
			get(t, client, fmt.Sprintf("http://%s/size/%d", authority, size), make([]byte, size))
		})
		t.Run("POST "+strconv.Itoa(size), func(t *testing.T) {
			body := make([]byte, size)
			_, _ = rand.Read(body) // Never fails.
			post(t, client, "http://"+authority+"/echo", body)
		})
	}
	t.Run("HEAD", func(t *testing.T) {
		answer, err := client.Head("http://" + authority + "/size/10")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if rest, err := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK || len(rest) > 0 || err != nil {
			t.Errorf("%s, %d bytes, %v", answer.Status, len(rest), err)
		}
	})
	t.Run("given up", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+authority+"/size/"+strconv.Itoa(most), nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		_ = answer.Body.Close()
		get(t, client, "http://"+authority+"/size/1", make([]byte, 1))
	})
	for name, path := range map[string]string{"fifty at once": "/echo", "fifty at once, no trailer left": "/echo?trailer=" + unlisted} {
		t.Run(name, func(t *testing.T) {
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() { post(t, client, "http://"+authority+path, bytes.Repeat([]byte("x"), many)) })
			}
			all.Wait()
		})
	}
}

func get(t *testing.T, client *http.Client, url string, want []byte) {
	t.Helper()
	answer, err := client.Get(url)
	check(t, answer, err, want)
}

func post(t *testing.T, client *http.Client, url string, body []byte) {
	t.Helper()
	// A reader of unknown length: many DATA frames, and no content-length.
	answer, err := client.Post(url, "application/octet-stream", struct{ io.Reader }{bytes.NewReader(body)})
	check(t, answer, err, body)
}

// check reads an answer; where the trailers came through, the checksum in them must be right.
func check(t *testing.T, answer *http.Response, err error, want []byte) {
	t.Helper()
	if err != nil {
		t.Error(err)
		return
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !bytes.Equal(body, want) {
		t.Errorf("%s, %d bytes, want %d: %v", answer.Status, len(body), len(want), err)
	}
	sum := sha256.Sum256(want)
	if got := answer.Trailer.Get(checksum); got != "" && got != hex.EncodeToString(sum[:]) {
		t.Errorf("the checksum in the trailers is %s, want %x", got, sum)
	}
}

// grpc runs the tests that the gRPC project has for implementations; they end the process when they fail.
func (c *chain) grpc(t *testing.T, port int, transport credentials.TransportCredentials) {
	conn, err := grpc.NewClient(c.at(port), grpc.WithTransportCredentials(transport), grpc.WithAuthority("grpc"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := testgrpc.NewTestServiceClient(conn)
	for name, do := range map[string]func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption){
		"empty unary":                 interop.DoEmptyUnaryCall,
		"large unary":                 interop.DoLargeUnaryCall,
		"client streaming":            interop.DoClientStreaming,
		"server streaming":            interop.DoServerStreaming,
		"ping pong":                   interop.DoPingPong,
		"empty stream":                interop.DoEmptyStream,
		"cancel after begin":          interop.DoCancelAfterBegin,
		"cancel after first response": interop.DoCancelAfterFirstResponse,
		"custom metadata":             interop.DoCustomMetadata,
		"status code and message":     interop.DoStatusCodeAndMessage,
		"special status message":      interop.DoSpecialStatusMessage,
	} {
		t.Run("gRPC "+name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			do(ctx, client)
		})
	}
	t.Run("gRPC timeout on sleeping server", func(t *testing.T) { timeoutOnSleepingServer(t, client) })
	t.Run("gRPC unimplemented method", func(t *testing.T) { interop.DoUnimplementedMethod(t.Context(), conn) })
	t.Run("gRPC unimplemented service", func(t *testing.T) {
		interop.DoUnimplementedService(t.Context(), testgrpc.NewUnimplementedServiceClient(conn))
	})
}

// timeoutOnSleepingServer is the gRPC project's test of that name, behind a proxy. Client and server have the same deadline:
// when the server's timer is the first, it resets the stream, and the proxy answers for it, as Envoy does.
func timeoutOnSleepingServer(t *testing.T, client testgrpc.TestServiceClient) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	stream, err := client.FullDuplexCall(ctx)
	if err == nil {
		err = stream.Send(&testgrpc.StreamingOutputCallRequest{Payload: interop.ClientNewPayload(testgrpc.PayloadType_COMPRESSABLE, 27182)})
		if err == nil || errors.Is(err, io.EOF) {
			_, err = stream.Recv()
		}
	}
	reset := status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "remote reset")
	if status.Code(err) != codes.DeadlineExceeded && !reset {
		t.Errorf("%v, want the deadline exceeded", err)
	}
}

// nghttpd serves files, and no more.
func (c *chain) nghttpd(t *testing.T) {
	out := c.run(t, "curl", "-sS", "--http2-prior-knowledge", "-H", "Host: nghttpd", "-o", "/dev/null", "-w", "%{http_code} %{http_version} %{size_download}",
		"http://"+c.at(plainPort)+"/file")
	if out != "200 2 1048576" {
		t.Errorf("curl says %q", out)
	}
}

func (c *chain) curl(t *testing.T) {
	says := []string{"-sS", "--no-progress-meter", "-k", "-H", "Host: origin", "-o", "/dev/null", "-w", "%{http_code} %{http_version} %{size_download}"}
	for name, args := range map[string][]string{
		"prior knowledge":   {"--http2-prior-knowledge", "http://" + c.at(plainPort) + "/size/100000"},
		"TLS":               {"--http2", "https://" + c.at(tlsPort) + "/size/100000"},
		"POST":              {"--http2", "--data-binary", "@" + c.file("file"), "https://" + c.at(tlsPort) + "/echo"},
		"Expect":            {"--http2", "-H", "Expect: 100-continue", "--data-binary", "@" + c.file("file"), "https://" + c.at(tlsPort) + "/echo"},
		"several, parallel": {"--http2", "--parallel", "https://" + c.at(tlsPort) + "/size/100000"},
	} {
		t.Run(name, func(t *testing.T) {
			want := "200 2 100000"
			if strings.HasSuffix(args[len(args)-1], "/echo") {
				want = "200 2 1048576"
			}
			if out := c.run(t, append(append([]string{"curl"}, says...), args...)...); out != want {
				t.Errorf("curl says %q, want %q", out, want)
			}
		})
	}
}

func (c *chain) nghttp(t *testing.T) {
	// Eight requests at once by one connection, with bodies, trailers and padding.
	out := c.run(t, "nghttp", "-nv", "-m", "8", "-d", c.file("file"), "--trailer=x-t: 1", "--padding=100", "-H", ":authority: origin", "http://"+c.at(plainPort)+"/echo")
	if n := strings.Count(out, ":status: 200"); n != 8 {
		t.Errorf("%d answers, want 8:\n%.4000s", n, out)
	}
	if n := strings.Count(out, checksum+": "); n != 8 {
		t.Errorf("%d trailers, want 8", n)
	}
}

var h2loadTotals = regexp.MustCompile(`requests: (\d+) total, \d+ started, \d+ done, (\d+) succeeded`)

func (c *chain) h2load(t *testing.T) {
	for _, url := range []string{"http://" + c.at(plainPort), "https://" + c.at(tlsPort)} {
		out := c.run(t, "h2load", "-n", "5000", "-c", "8", "-m", "32", "-H", ":authority: origin", url+"/size/64")
		if m := h2loadTotals.FindStringSubmatch(out); m == nil || m[1] != "5000" || m[2] != "5000" {
			t.Errorf("not all of 5000 succeeded:\n%s", out)
		}
	}
}

func (c *chain) chromium(t *testing.T) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("/usr/bin/chromium"), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(t.TempDir()), chromedp.Flag("disable-quic", true), chromedp.Flag("ignore-certificate-errors", true),
		chromedp.Flag("host-resolver-rules", "MAP origin "+c.proxy.Address))
	allocator, stop := chromedp.NewExecAllocator(t.Context(), options...)
	defer stop()
	tab, closeTab := chromedp.NewContext(allocator)
	defer closeTab()
	browser, cancel := context.WithTimeout(tab, bound)
	defer cancel()
	if err := chromedp.Do(browser, chromedp.Navigate(fmt.Sprintf("https://origin:%d/page", tlsPort)), chromedp.WaitVisible(chromedp.CSS("#done"))); err != nil {
		t.Fatal(err)
	}
	said, err := chromedp.Run(browser, chromedp.Evaluate[string](`(async () => {
		const sizes = await Promise.all([...Array(20).keys()].map(async i => (await (await fetch('/size/' + i * 10000)).arrayBuffer()).byteLength));
		const echo = await (await fetch('/echo', {method: 'POST', body: 'x'.repeat(300000)})).text();
		const protocols = new Set(performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation')).map(e => e.nextHopProtocol));
		return [sizes.reduce((a, b) => a + b), echo.length, ...protocols].join(' ');
	})()`, chromedp.EvalAwaitPromise))
	if err != nil || said != "1900000 300000 h2" {
		t.Errorf("Chromium says %q, %v", said, err)
	}
	// It has an HTTP/2 connection that offers extended CONNECT, so it takes that one (RFC 8441).
	said, err = chromedp.Run(browser, chromedp.Evaluate[string](`Promise.all(['/socket', '/far/socket'].map(path => new Promise(done => {
		const socket = new WebSocket('wss://' + location.host + path);
		let heard = 0;
		socket.onopen = () => socket.send('x'.repeat(300000));
		socket.onmessage = event => {
			heard += event.data.length;
			if (heard >= 300000) {
				done(heard);
				socket.close();
			}
		};
		socket.onerror = () => done('error');
	}))).then(lengths => lengths.join(' '))`, chromedp.EvalAwaitPromise))
	if err != nil || said != "300000 300000" {
		t.Errorf("Chromium says %q of WebSocket, %v", said, err)
	}
	text, err := c.proxy.Admin("/stats/prometheus", bound)
	if err != nil {
		t.Fatal(err)
	}
	if connections := http1OverTLS.FindStringSubmatch(text); connections == nil || connections[1] != "0" {
		t.Errorf("connections of HTTP/1.1 to the listener with TLS: %v, want 0", connections)
	}
}

// http1OverTLS is the counter of connections that Chromium would open for WebSocket without HTTP/2.
var http1OverTLS = regexp.MustCompile(`envoy_http_downstream_cx_http1_total\{[^}]*="tls"[^}]*\} (\d+)`)

// run runs a client and returns what it prints.
func (c *chain) run(t *testing.T, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%.4000s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}
