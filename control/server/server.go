// Package server is a controller's REST API on its unix socket: objects in Kubernetes' paths, batches that are applied
// whole or not at all, watches, statuses, proxies, workload certificates, logs.
//
// Only root, and the user behind sudo who started the cluster, may open the socket: whoever can, is trusted to administer
// the cluster and, as its agent, to attest workloads. Bodies, waits and streams are bounded all the same.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/build"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

// Bounds of requests.
const (
	maxBody    = 32 << 20
	maxWatches = 256
)

// Controller is what the API needs of the controller that it belongs to.
type Controller interface {
	// Report takes an agent's report.
	Report(ctx context.Context, report client.Report) error
	// Replicas lists what agents reported.
	Replicas() []client.Replica
	Status(ctx context.Context) (client.Status, error)
	Proxies() []client.ProxyStatus
	// ProxyConfig is what a connected proxy is to run, by type; false when it is not connected.
	ProxyConfig(nodeID string) (map[string][]proto.Message, bool)
	// Names is what DNS servers answer; the channel is closed once there is something else.
	Names() (client.Names, <-chan struct{})
	// Runtime is what the model is built of beside the objects.
	Runtime() build.Runtime
}

// Config of a server.
type Config struct {
	Cluster string
	// Settings of the mesh, against which writes are checked.
	Settings   model.Settings
	Store      store.Store
	Authority  *ca.Authority
	Controller Controller
	Federation Federation
	// AgentSocket is where requests for the agent are passed on to.
	AgentSocket string
	// Logs is the directory of log files.
	Logs string
	Log  *slog.Logger
	Now  func() time.Time
}

// Server is the API.
type Server struct {
	config  Config
	handler http.Handler
	// writing serialises batches: each is checked against what the one before it left.
	writing sync.Mutex
	watches chan struct{}
}

// New makes the API.
func New(config Config) *Server {
	if config.Now == nil {
		config.Now = time.Now
	}
	s := &Server{config: config, watches: make(chan struct{}, maxWatches)}
	mux := http.NewServeMux()
	mux.HandleFunc("/api/{rest...}", s.handleObjects)
	mux.HandleFunc("/apis/{rest...}", s.handleObjects)
	mux.HandleFunc("POST /heddle/v1/apply", s.handleApply)
	mux.HandleFunc("POST /heddle/v1/certificates", s.handleSign)
	mux.HandleFunc("PUT /heddle/v1/report", s.handleReport)
	mux.HandleFunc("GET /heddle/v1/replicas", func(w http.ResponseWriter, _ *http.Request) { reply(w, config.Controller.Replicas()) })
	mux.HandleFunc("GET /heddle/v1/status", s.handleStatus)
	mux.HandleFunc("GET /heddle/v1/proxies", func(w http.ResponseWriter, _ *http.Request) { reply(w, config.Controller.Proxies()) })
	mux.HandleFunc("GET /heddle/v1/proxies/{node}/config", s.handleProxyConfig)
	mux.HandleFunc("GET /heddle/v1/logs/{namespace}/{replica}/{part}", s.handleLogs)
	mux.HandleFunc("GET /heddle/v1/logs/{part}", s.handleLogs)
	mux.HandleFunc("GET /heddle/v1/names", s.handleNames)
	mux.HandleFunc("GET /heddle/v1/federation", func(w http.ResponseWriter, _ *http.Request) { reply(w, config.Federation.Status()) })
	mux.HandleFunc("POST /heddle/v1/federation/tokens", s.handleToken)
	mux.HandleFunc("POST /heddle/v1/federation/join", s.handleJoin)
	mux.HandleFunc("POST /heddle/v1/federation/rotate", s.handleRotate)
	mux.Handle("/heddle/v1/agent/", s.agent())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, &client.Problem{Status: http.StatusNotFound, What: "the API has no such path", Where: r.URL.Path})
	})
	s.handler = http.MaxBytesHandler(mux, maxBody)
	return s
}

// Handler is the API without a socket.
func (s *Server) Handler() http.Handler { return s.handler }

// Listen opens the API's socket, for root only. A file left by a controller that was killed is replaced.
func Listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replace socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("guard socket: %w", err)
	}
	return listener, nil
}

// Serve answers until ctx ends.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: s.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if server.Shutdown(grace) != nil {
			server.Close()
		}
	}()
	err := server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		<-ended
		return nil
	}
	return fmt.Errorf("serve API: %w", err)
}

func reply(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	// A client that went away cannot be told.
	_ = json.NewEncoder(w).Encode(value)
}

func refuse(w http.ResponseWriter, problem *client.Problem) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(problem.Status)
	_ = json.NewEncoder(w).Encode(problem)
}

// refuseError maps an error to an answer.
func refuseError(w http.ResponseWriter, what, where string, err error) {
	problem := &client.Problem{Status: http.StatusInternalServerError, What: what, Where: where, Why: err.Error()}
	var ready *client.Problem
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &ready):
		problem = ready
	case errors.As(err, &tooLarge):
		problem.Status, problem.Remedy = http.StatusRequestEntityTooLarge, fmt.Sprintf("send at most %d MiB at once", tooLarge.Limit>>20)
	case errors.Is(err, store.ErrNotFound):
		problem.Status = http.StatusNotFound
	case errors.Is(err, store.ErrConflict):
		problem.Status, problem.Remedy = http.StatusConflict, "read the object again and repeat the change"
	case errors.Is(err, store.ErrCompacted):
		problem.Status, problem.Remedy = http.StatusGone, "list and watch anew"
	case errors.Is(err, store.ErrUnavailable):
		problem.Status, problem.Remedy = http.StatusServiceUnavailable, "nothing was changed; see `heddle logs --controller`, and make room if the disk is full"
	case errors.Is(err, ca.ErrRefused):
		problem.Status = http.StatusForbidden
	}
	refuse(w, problem)
}

// decode reads a JSON body that must have no unknown fields.
func decode(r *http.Request, into any) error {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return err
		}
		return &client.Problem{Status: http.StatusBadRequest, What: "the request's body cannot be read", Why: err.Error()}
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return &client.Problem{Status: http.StatusBadRequest, What: "the request's body holds more than one value"}
	}
	return nil
}

func (s *Server) handleSign(w http.ResponseWriter, r *http.Request) {
	var request client.SigningRequest
	if err := decode(r, &request); err != nil {
		refuseError(w, "certificate not signed", "", err)
		return
	}
	identity := ca.Identity{TrustDomain: s.config.Settings.TrustDomain, Namespace: request.Namespace, ServiceAccount: request.ServiceAccount}
	issued, err := s.config.Authority.Sign([]byte(request.Request), identity, 0)
	if err != nil {
		refuseError(w, "certificate not signed", identity.String(), err)
		return
	}
	s.config.Log.Info("certificate signed", "identity", identity.String(), "serial", issued.Serial, "expires", issued.Expires)
	reply(w, client.SigningResponse{Chain: string(issued.Chain), Roots: string(issued.Roots), Expires: issued.Expires, Serial: issued.Serial, Issuer: issued.Issuer})
}

func (s *Server) handleReport(w http.ResponseWriter, r *http.Request) {
	var report client.Report
	err := decode(r, &report)
	if err == nil {
		err = s.config.Controller.Report(r.Context(), report)
	}
	if err != nil {
		refuseError(w, "report not taken", report.Agent, err)
		return
	}
	reply(w, map[string]string{"status": "taken"})
}

func (s *Server) handleStatus(w http.ResponseWriter, r *http.Request) {
	status, err := s.config.Controller.Status(r.Context())
	if err != nil {
		refuseError(w, "status not known", "", err)
		return
	}
	reply(w, status)
}

func (s *Server) handleProxyConfig(w http.ResponseWriter, r *http.Request) {
	config, ok := s.config.Controller.ProxyConfig(r.PathValue("node"))
	if !ok {
		refuse(w, &client.Problem{Status: http.StatusNotFound, What: "no such proxy is connected", Where: r.PathValue("node"),
			Remedy: "`heddle proxy status` lists those that are"})
		return
	}
	out := map[string][]json.RawMessage{}
	for kind, resources := range config {
		for _, resource := range resources {
			if kind == "SDS" {
				resource = redactSecret(resource)
			}
			text, err := protojson.Marshal(resource)
			if err != nil {
				refuseError(w, "configuration not shown", r.PathValue("node"), err)
				return
			}
			out[kind] = append(out[kind], text)
		}
	}
	reply(w, out)
}

// agent passes requests on to the agent of this machine.
func (s *Server) agent() http.Handler {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", s.config.AgentSocket)
	}, MaxIdleConns: 4, IdleConnTimeout: time.Minute}
	return &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: "agent"})
			p.Out.URL.Path = "/v1/" + strings.TrimPrefix(p.In.URL.Path, "/heddle/v1/agent/")
			p.Out.URL.RawPath = ""
		},
		Transport: transport, FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			refuse(w, &client.Problem{Status: http.StatusBadGateway, What: "the agent does not answer", Where: s.config.AgentSocket, Why: err.Error(),
				Remedy: "`sudo heddle up --name " + s.config.Cluster + "` repairs the cluster; its agent's log is " + s.config.Logs + "/agent.log"})
		},
	}
}
