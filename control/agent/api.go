package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"heddle.io/heddle/control/server/client"
)

// Status is the agent's answer about itself.
type Status struct {
	PID           int              `json:"pid"`
	ControllerPID int              `json:"controllerPid,omitempty"`
	DNSPID        int              `json:"dnsPid,omitempty"`
	Replicas      []client.Replica `json:"replicas"`
}

// serve offers the agent's API on its socket, for the controller to pass on and for `up`, `down` and `check`:
//
//	GET  /v1/status                                   what runs
//	GET  /v1/bypass                                   what the TCP bypass does
//	GET  /v1/metrics                                  what the agent counts, in Prometheus' formats
//	GET  /v1/checks                                   proves each replica, see check.go
//	POST /v1/shutdown                                 stops everything and ends the agent
//	POST /v1/rotate                                   renews all certificates, and answers when that is done (client.Rotation)
//	POST /v1/replicas/{namespace}/{name}/rotate       renews one certificate, and answers when that is done
//	POST /v1/replicas/{namespace}/{name}/handshake    meets a server with the replica's identity, see reach.go
//	POST /v1/replicas/{namespace}/{name}/call         calls a service as its application would, see call.go
//	GET  /v1/replicas/{namespace}/{name}/resolve      what its DNS answers for ?name=, see resolve.go
//	     /v1/replicas/{namespace}/{name}/admin/{path} the proxy's admin interface
func (a *Agent) serve() (func(), error) {
	path := a.config.Cluster.AgentSocket()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replace socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("serve agent: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("guard socket: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.status()) })
	mux.HandleFunc("GET /v1/bypass", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.bypass.status()) })
	mux.Handle("GET /v1/metrics", a.metrics())
	mux.HandleFunc("GET /v1/checks", func(w http.ResponseWriter, r *http.Request) { answer(w, a.check(r.Context())) })
	mux.HandleFunc("POST /v1/shutdown", func(w http.ResponseWriter, _ *http.Request) {
		a.once.Do(func() { close(a.shutdown) })
		answer(w, map[string]string{"status": "shutting down"})
	})
	mux.HandleFunc("POST /v1/rotate", func(w http.ResponseWriter, r *http.Request) {
		// Without a generation, all are renewed.
		answer(w, a.rotate(r.Context(), r.URL.Query().Get("generation")))
	})
	mux.HandleFunc("POST /v1/replicas/{namespace}/{name}/rotate", a.handleRotate)
	mux.HandleFunc("POST /v1/replicas/{namespace}/{name}/handshake", a.handleHandshake)
	mux.HandleFunc("POST /v1/replicas/{namespace}/{name}/call", a.handleCall)
	mux.HandleFunc("GET /v1/replicas/{namespace}/{name}/resolve", a.handleResolve)
	mux.HandleFunc("/v1/replicas/{namespace}/{name}/admin/", a.handleAdmin)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("agent API ended", "error", err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			server.Close()
		}
	}, nil
}

func (a *Agent) metrics() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(&a.bypass, &a.captures, &a.refusals)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

func (a *Agent) status() Status {
	s := Status{PID: os.Getpid(), ControllerPID: a.controller.pid(), DNSPID: a.dns.pid(), Replicas: []client.Replica{}}
	for _, r := range a.all() {
		s.Replicas = append(s.Replicas, *r.report())
	}
	return s
}

// maxRequest bounds the body of a request to the agent.
const maxRequest = 4 << 10

// read decodes a request's body; false when it cannot be read, which the client has been told then.
func read(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(into); err != nil {
		refuse(w, &client.Problem{Status: http.StatusBadRequest, What: "the request's body cannot be read", Why: err.Error()})
		return false
	}
	return true
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	// A client that went away cannot be told.
	_ = json.NewEncoder(w).Encode(value)
}

func refuse(w http.ResponseWriter, problem *client.Problem) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(problem.Status)
	_ = json.NewEncoder(w).Encode(problem)
}

func (a *Agent) replicaOf(w http.ResponseWriter, r *http.Request) *replica {
	found := a.find(r.PathValue("namespace"), r.PathValue("name"))
	if found == nil {
		refuse(w, &client.Problem{Status: http.StatusNotFound, What: "no such replica runs here",
			Where: r.PathValue("namespace") + "/" + r.PathValue("name"), Remedy: "`heddle ps -A` lists the replicas"})
	}
	return found
}

// handleAdmin passes a request on to a proxy's admin interface.
func (a *Agent) handleAdmin(w http.ResponseWriter, r *http.Request) {
	found := a.replicaOf(w, r)
	if found == nil {
		return
	}
	prefix := "/v1/replicas/" + r.PathValue("namespace") + "/" + r.PathValue("name") + "/admin"
	transport := found.adminTransport()
	defer transport.CloseIdleConnections()
	(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: adminAddress})
			p.Out.URL.Path = strings.TrimPrefix(p.In.URL.Path, prefix)
			p.Out.URL.RawPath = ""
		},
		Transport: transport,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			refuse(w, &client.Problem{Status: http.StatusBadGateway, What: "the proxy's admin interface does not answer", Where: found.spec.key(),
				Why: err.Error(), Remedy: "`heddle ps` shows whether the proxy runs, `heddle logs --proxy` what it says"})
		},
	}).ServeHTTP(w, r)
}
