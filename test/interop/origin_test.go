//go:build interop

package interop

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
)

// most bytes that anybody asks of the origin.
const most = 16 << 20

// checksum is a trailer that travels on, unlisted one that stays behind.
const (
	checksum = "x-checksum-sha256"
	unlisted = "x-sha256"
)

// origin answers at the end of every chain: /size/N by N bytes, /echo by what was sent, both with their checksum in the
// trailers, by the name of the query's trailer if it has one, and /page by a page for a browser.
func origin(w http.ResponseWriter, r *http.Request) {
	trailer := cmp.Or(r.URL.Query().Get("trailer"), checksum)
	w.Header().Set("Trailer", trailer)
	w.Header().Set("x-origin-proto", r.Proto)
	sum := sha256.New()
	out := io.MultiWriter(w, sum)
	// Over HTTP/1.1, Go reads requests to their end before it answers, unless it is told that they may overlap.
	err := http.NewResponseController(w).EnableFullDuplex()
	if r.ProtoMajor == 1 && err != nil {
		panic(err)
	}
	switch {
	case r.URL.Path == "/echo":
		_, err = io.Copy(out, http.MaxBytesReader(w, r.Body, most))
	case r.URL.Path == "/page":
		w.Header().Set("Content-Type", "text/html")
		_, err = io.WriteString(out, "<title>origin</title><p id=done>done</p>")
	case strings.HasPrefix(r.URL.Path, "/size/"):
		n, convErr := strconv.ParseInt(strings.TrimPrefix(r.URL.Path, "/size/"), 10, 32)
		if convErr != nil || n > most {
			http.Error(w, "want /size/N", http.StatusBadRequest)
			return
		}
		_, err = io.CopyN(out, zeros{}, n)
	default:
		http.NotFound(w, r)
		return
	}
	if err != nil {
		// Whoever asked sees an answer that is cut short.
		panic(http.ErrAbortHandler)
	}
	w.Header().Set(trailer, hex.EncodeToString(sum.Sum(nil)))
}

// zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// startOrigin serves HTTP/1.1 and HTTP/2 with prior knowledge.
func startOrigin(t *testing.T, address string) {
	t.Helper()
	protocols := priorKnowledge()
	protocols.SetHTTP1(true)
	server := &http.Server{Handler: http.HandlerFunc(origin), Protocols: protocols}
	serve(t, address, server.Serve, server.Close)
}

// startSockets serves WebSocket over HTTP/1.1: every message goes back, piece by piece as its frames come.
func startSockets(t *testing.T, address string) {
	t.Helper()
	echo := websocket.Server{Handler: func(ws *websocket.Conn) {
		var message string
		for websocket.Message.Receive(ws, &message) == nil && websocket.Message.Send(ws, message) == nil {
		}
	}}
	server := &http.Server{Handler: echo}
	serve(t, address, server.Serve, server.Close)
}

// priorKnowledge is HTTP/2 without TLS and without asking.
func priorKnowledge() *http.Protocols {
	out := new(http.Protocols)
	out.SetUnencryptedHTTP2(true)
	return out
}

// startGRPC serves what the gRPC project tests implementations with.
func startGRPC(t *testing.T, address string) {
	t.Helper()
	server := grpc.NewServer()
	testgrpc.RegisterTestServiceServer(server, interop.NewTestServer())
	serve(t, address, server.Serve, func() error { server.Stop(); return nil })
}

func serve(t *testing.T, address string, serve func(net.Listener) error, stop func() error) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serve(listener) }()
	t.Cleanup(func() {
		_ = stop()
		if err := <-ended; err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", address, err)
		}
	})
}
