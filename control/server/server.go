// Package server is a controller's REST API on its unix socket: objects in Kubernetes' paths, batches that are applied
// whole or not at all, watches, statuses, proxies, workload certificates, logs.
//
// Everybody on the machine may open the socket, and is known by what the kernel says of the process at the other end, or by
// a token. What callers may do, package access and the table of routes say: root and the user behind sudo who started the
// cluster everything, others nothing until an admin binds a role to them. Only root, as the cluster's agent, attests
// workloads. Who has no role is refused before any of the body is read.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/http/pprof"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/connlimit"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

// Bounds of requests.
const (
	maxBody    = 32 << 20
	maxWatches = 256
	// maxLogs are read at a time; each holds logPiece.
	maxLogs = 256
	// maxPerCaller connections are open at a time of one user of this machine or one source address, maxCallers of all; beyond
	// these, those whose caller has no role make room.
	maxPerCaller = 64
	maxCallers   = 512
)

// Controller is what the API needs of the controller that it belongs to.
type Controller interface {
	// Report takes an agent's report.
	Report(ctx context.Context, report client.Report) error
	// ReportChange takes what is different in it since. Its error is a [*client.Problem] with status 409 when the report before is not
	// known.
	ReportChange(ctx context.Context, change client.ReportChange) error
	// Unchanged takes an agent's word that its last report holds. Its error is a [*client.Problem] with status 409 when that is
	// not known.
	Unchanged(u client.Unchanged) error
	// Replicas lists what agents reported.
	Replicas() []client.Replica
	Status(ctx context.Context) (client.Status, error)
	Proxies() []client.ProxyStatus
	// Running is how many of the connected proxies run each of these objects now.
	Running(of []objects.Key) map[objects.Key]int
	// ProxyConfig is what a connected proxy is to run, by type; false when it is not connected.
	ProxyConfig(nodeID string) (map[string][]proto.Message, bool)
	// Names is what DNS servers answer; the channel is closed once there is something else.
	Names() (client.Names, <-chan struct{})
	// Admit checks a batch as a whole against what is stored (see [resolve.Model.Admit]).
	Admit(writes []store.Write) ([]store.Write, map[objects.Key]resolve.Warnings, []error)
}

// Config of a server.
type Config struct {
	Cluster string
	// Version of the program.
	Version string
	// Settings of the mesh, against which writes are checked.
	Settings model.Settings
	Store    store.Batch
	// Bindings hears of every change of Store.
	Bindings *access.Bindings
	// Sealing is the store, if it encrypts Secrets by itself; otherwise nil.
	Sealing    store.Sealing
	Authority  *ca.Authority
	Controller Controller
	Federation Federation
	// Owner, when not zero, is the user of this machine who started the cluster: an admin, as root is.
	Owner int
	// PrivilegedWorkloads allows workloads to name any user in every namespace: they run without sandboxes.
	PrivilegedWorkloads bool
	// Remote is where the API is served over TLS too, by ServeRemote; the zero value for nowhere.
	Remote Remote
	// Audit records every change and signing before it is made.
	Audit *audit.Log
	// AgentSocket is where requests for the agent are passed on to.
	AgentSocket string
	// Metrics of the controller, in Prometheus' formats.
	Metrics http.Handler
	// Logs is the directory of log files.
	Logs string
	Log  *slog.Logger
	Now  func() time.Time
}

// Server is the API.
type Server struct {
	config        Config
	handler       http.Handler
	authenticator *access.Authenticator
	// writing serialises batches: each is checked against what the one before it left.
	writing sync.Mutex
	// watches and logs hold an element for each that lasts.
	watches, logs chan struct{}
	// lookAgain is [lookAgain] but in tests.
	lookAgain time.Duration
	// refusals count requests without a role, and without any caller; listeners count connections.
	forbidden, unauthenticated atomic.Uint64
	// remoteProblem is why the port is not open (string).
	remoteProblem atomic.Value
	listenersMu   sync.Mutex
	listeners     []*connlimit.Listener
}

// New makes the API.
func New(config Config) *Server {
	if config.Now == nil {
		config.Now = time.Now
	}
	s := &Server{config: config, watches: make(chan struct{}, maxWatches), logs: make(chan struct{}, maxLogs), lookAgain: lookAgain}
	s.authenticator = &access.Authenticator{Store: config.Store, Bindings: config.Bindings, Tokens: &access.Tokens{Store: config.Store, Now: config.Now}, Owner: config.Owner,
		TrustDomain: config.Settings.TrustDomain, Issuers: config.Authority.Issuers}
	mux := http.NewServeMux()
	route := func(pattern string, n need, f http.HandlerFunc) { mux.HandleFunc(pattern, s.guarded(n, f)) }
	route("/api/{rest...}", needOfObjects, s.handleObjects)
	route("/apis/{rest...}", needOfObjects, s.handleObjects)
	// What this needs depends on the objects that are in it, see permit.
	route("POST /heddle/v1/apply", somewhere(access.Viewer, "apply objects"), s.handleApply)
	mux.HandleFunc("POST /heddle/v1/certificates", s.agentsOnly("have certificates of workloads signed", s.handleSign))
	mux.HandleFunc("PUT /heddle/v1/report", s.agentsOnly("report what runs", s.handleReport))
	mux.HandleFunc("PUT /heddle/v1/report/changes", s.agentsOnly("report what runs", s.handleReportChange))
	mux.HandleFunc("PUT /heddle/v1/report/unchanged", s.agentsOnly("report what runs", s.handleUnchanged))
	route("GET /heddle/v1/replicas", somewhere(access.Viewer, "list replicas"), s.handleReplicas)
	route("GET /heddle/v1/status", somewhere(access.Viewer, "see the cluster's status"), s.handleStatus)
	route("GET /heddle/v1/proxies", somewhere(access.Viewer, "list proxies"), s.handleProxies)
	route("GET /heddle/v1/proxies/{node}/config", somewhere(access.Viewer, "see the configuration of proxies"), s.handleProxyConfig)
	route("GET /heddle/v1/logs/{namespace}/{replica}/{part}", within(access.Viewer, "read logs"), s.handleLogs)
	route("GET /heddle/v1/logs/{part}", everywhere(access.Admin, "read the logs of the controller and the agent"), s.handleLogs)
	route("GET /heddle/v1/names", everywhere(access.Viewer, "see all names"), s.handleNames)
	route("GET /heddle/v1/federation", everywhere(access.Viewer, "see the mesh of clusters"), func(w http.ResponseWriter, _ *http.Request) { reply(w, config.Federation.Status()) })
	route("POST /heddle/v1/federation/tokens", everywhere(access.Admin, "make join tokens"), s.handleToken)
	route("POST /heddle/v1/federation/join", everywhere(access.Admin, "have the cluster join a mesh"), s.handleJoin)
	route("POST /heddle/v1/federation/rotate", everywhere(access.Admin, "rotate the cluster's intermediate"), s.handleRotate)
	route("GET /heddle/v1/ca", anybody, s.handleCA)
	route("GET /heddle/v1/ca/status", everywhere(access.Viewer, "see the mesh's certificate authority"), s.handleAuthority)
	route("POST /heddle/v1/ca/rotate", everywhere(access.Admin, "rotate the mesh's root"), s.handleRotateRoot)
	route("POST /heddle/v1/ca/csr", everywhere(access.Admin, "request a certificate for the mesh's authority"), s.handleRequestRoot)
	route("POST /heddle/v1/ca/install", everywhere(access.Admin, "install a certificate authority"), s.handleInstallRoot)
	route("POST /heddle/v1/ca/abort", everywhere(access.Admin, "take back a change of the mesh's root"), s.handleAbortRoot)
	route("GET /heddle/v1/whoami", anybody, s.handleWhoAmI)
	route("POST /heddle/v1/tokens", somewhere(access.Admin, "make tokens"), s.handleMakeToken)
	route("GET /heddle/v1/tokens", somewhere(access.Admin, "list tokens"), s.handleTokens)
	route("DELETE /heddle/v1/tokens/{id}", somewhere(access.Admin, "revoke tokens"), s.handleRevokeToken)
	route("GET /heddle/v1/secrets", everywhere(access.Viewer, "see how Secrets are encrypted"), s.handleSecrets)
	route("POST /heddle/v1/secrets/rotate", everywhere(access.Admin, "encrypt Secrets with a new key"), s.handleRotateSecrets)
	route("DELETE /heddle/v1/batches/{id}", everywhere(access.Admin, "give up interrupted batches"), s.handleDiscard)
	route("GET /heddle/v1/audit", everywhere(access.Admin, "read the audit log"), s.handleAudit)
	route("GET /heddle/v1/backup", everywhere(access.Admin, "take a backup"), s.handleBackup)
	route("POST /heddle/v1/restore", everywhere(access.Admin, "restore a backup"), s.handleRestore)
	mux.HandleFunc(agentPrefix, s.handleAgent(s.agent()))
	if config.Metrics != nil {
		route("GET /metrics", everywhere(access.Viewer, "read the controller's metrics"), config.Metrics.ServeHTTP)
	}
	// As net/http/pprof has it, so that `go tool pprof` finds it.
	route("GET /debug/pprof/", everywhere(access.Admin, "profile the controller"), pprof.Index)
	route("GET /debug/pprof/profile", everywhere(access.Admin, "profile the controller"), pprof.Profile)
	route("GET /debug/pprof/trace", everywhere(access.Admin, "profile the controller"), pprof.Trace)
	route("/", somewhere(access.Viewer, "use the API"), func(w http.ResponseWriter, r *http.Request) {
		refuse(w, &client.Problem{Status: http.StatusNotFound, What: "the API has no such path", Where: r.URL.Path})
	})
	s.handler = http.MaxBytesHandler(s.authenticated(mux), maxBody)
	return s
}

// Handler is the API without a socket.
func (s *Server) Handler() http.Handler { return s.handler }

// Listen opens a socket for root only. A file left by a controller that was killed is replaced.
func Listen(path string) (net.Listener, error) { return listen(path, 0o600) }

// ListenAPI opens the API's socket, for everybody on this machine: who it is, each connection is asked. A file left by a
// controller that was killed is replaced.
func ListenAPI(path string) (net.Listener, error) {
	listener, err := listen(path, 0o666)
	if err != nil {
		return nil, err
	}
	limited := connlimit.New(listener, maxPerCaller, maxCallers, peers)
	limited.Evict = true
	return limited, nil
}

// peers counts by user of this machine. Root is not counted: the agent is never kept out by others.
func peers(conn net.Conn) (any, bool) {
	peer, err := access.PeerOf(conn)
	if err != nil {
		return -1, true
	}
	return peer.UID, peer.UID != 0
}

func listen(path string, mode fs.FileMode) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replace socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		listener.Close()
		return nil, fmt.Errorf("guard socket: %w", err)
	}
	return listener, nil
}

// Serve answers until ctx ends.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	if c, ok := listener.(*connlimit.Listener); ok {
		s.count(c)
	}
	return s.serve(ctx, listener, s.handler)
}

// count has a listener's connections counted.
func (s *Server) count(c *connlimit.Listener) {
	s.listenersMu.Lock()
	defer s.listenersMu.Unlock()
	s.listeners = append(s.listeners, c)
}

func (s *Server) serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withPeer,
		ErrorLog: slog.NewLogLogger(s.config.Log.Handler(), slog.LevelDebug)}
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
	case errors.Is(err, store.ErrInterrupted):
		problem.Status, problem.What = http.StatusServiceUnavailable, "a part of the objects is written, and the rest is not yet"
		problem.Remedy = "nothing needs to be repeated: the rest is written as soon as the store answers; `heddle check` says whether it is"
	case errors.Is(err, store.ErrNotFound):
		problem.Status = http.StatusNotFound
	case errors.Is(err, store.ErrConflict):
		problem.Status, problem.Remedy = http.StatusConflict, "read the object again and repeat the change"
	case errors.Is(err, store.ErrExpired):
		problem.Status, problem.Remedy = http.StatusGone, "list and watch anew"
	case errors.Is(err, store.ErrTooLarge):
		problem.Status, problem.Remedy = http.StatusRequestEntityTooLarge, "nothing was changed; apply less at once, or smaller objects"
	case errors.Is(err, store.ErrFull):
		problem.Status, problem.Remedy = http.StatusInsufficientStorage, "nothing was changed; delete objects that are not needed: a few seconds later there is room again"
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
	sign := s.config.Authority.Sign
	if request.Outside {
		sign = s.config.Authority.SignOutside
	}
	issued, err := sign([]byte(request.Request), identity, request.Lifetime)
	if err == nil {
		caller := access.From(r.Context())
		// Nothing of it has left yet.
		err = s.config.Audit.Signed(audit.Record{Who: caller.String(), From: caller.From, Action: audit.Sign, Objects: []audit.Object{{Name: identity.String()}},
			Detail: "serial " + issued.Serial + ", issuer " + issued.Issuer + ", until " + issued.Expires.UTC().Format(time.RFC3339)})
	}
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

func (s *Server) handleReportChange(w http.ResponseWriter, r *http.Request) {
	var change client.ReportChange
	err := decode(r, &change)
	if err == nil {
		err = s.config.Controller.ReportChange(r.Context(), change)
	}
	if err != nil {
		refuseError(w, "report not taken", change.Agent, err)
		return
	}
	reply(w, map[string]string{"status": "taken"})
}

func (s *Server) handleUnchanged(w http.ResponseWriter, r *http.Request) {
	var u client.Unchanged
	err := decode(r, &u)
	if err == nil {
		err = s.config.Controller.Unchanged(u)
	}
	if err != nil {
		refuseError(w, "report not taken", u.Agent, err)
		return
	}
	reply(w, map[string]string{"status": "taken"})
}

func (s *Server) handleStatus(w http.ResponseWriter, r *http.Request) {
	status, err := s.config.Controller.Status(r.Context())
	if problem := s.config.Audit.Problem(); err == nil && problem != "" {
		status.Problem = strings.TrimPrefix(status.Problem+"; "+problem, "; ")
	}
	if err != nil {
		refuseError(w, "status not known", "", err)
		return
	}
	if problem, _ := s.remoteProblem.Load().(string); problem != "" {
		status.Problem = strings.TrimPrefix(status.Problem+"; "+problem, "; ")
	}
	status.Counters, status.Audit = s.counters(), s.config.Audit.Series()
	reply(w, status)
}

// counters are what happened at the API since the controller started.
func (s *Server) counters() map[string]uint64 {
	out := map[string]uint64{"requestsForbidden": s.forbidden.Load(), "requestsUnauthenticated": s.unauthenticated.Load(), "connections": 0, "connectionsRefused": 0,
		"changesRefused": s.config.Audit.Excess()}
	s.listenersMu.Lock()
	defer s.listenersMu.Unlock()
	for _, c := range s.listeners {
		out["connections"] += c.Accepted.Load()
		out["connectionsRefused"] += c.Refused.Load()
	}
	return out
}

// handleReplicas lists the replicas that the caller may see.
func (s *Server) handleReplicas(w http.ResponseWriter, r *http.Request) {
	grants := access.From(r.Context()).Grants
	reply(w, slices.DeleteFunc(slices.Clone(s.config.Controller.Replicas()), func(replica client.Replica) bool { return grants.In(replica.Namespace) < access.Viewer }))
}

// handleProxies lists the proxies that the caller may see.
func (s *Server) handleProxies(w http.ResponseWriter, r *http.Request) {
	grants := access.From(r.Context()).Grants
	reply(w, slices.DeleteFunc(slices.Clone(s.config.Controller.Proxies()), func(p client.ProxyStatus) bool { return grants.In(p.Namespace) < access.Viewer }))
}

// namespaceOf is the namespace of a proxy, by which it is decided who may see its configuration.
func (s *Server) namespaceOf(node string) string {
	for _, p := range s.config.Controller.Proxies() {
		if p.NodeID == node {
			return p.Namespace
		}
	}
	// One that no agent reported may be of any namespace.
	return access.Everywhere
}

func (s *Server) handleProxyConfig(w http.ResponseWriter, r *http.Request) {
	if !s.may(w, r, access.Need{Role: access.Viewer, Namespace: s.namespaceOf(r.PathValue("node")), To: "see the configuration of this proxy"}) {
		return
	}
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

// agentPrefix is where requests for the agent are.
const agentPrefix = "/heddle/v1/agent/"

// handleAgent decides and records what is passed on to the agent. It goes by the path that the agent will see.
func (s *Server) handleAgent(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path.Clean(r.URL.Path) && r.URL.Path != path.Clean(r.URL.Path)+"/" {
			refuse(w, &client.Problem{Status: http.StatusBadRequest, What: "the path is not clean", Where: r.URL.Path})
			return
		}
		n, action := needOfAgent(r.Method, r.URL.Path)
		if !s.may(w, r, n) {
			return
		}
		if action == "" {
			next.ServeHTTP(w, r)
			return
		}
		answer := &statusWriter{ResponseWriter: w}
		err := s.recorded(r.Context(), audit.Record{Action: action, Objects: []audit.Object{{Name: string(attempted(r))}}}, func() (string, error) {
			next.ServeHTTP(answer, r)
			if answer.status >= http.StatusBadRequest {
				return "", fmt.Errorf("answered with %d", answer.status)
			}
			return "", nil
		})
		if err != nil && answer.status == 0 {
			refuseError(w, "the agent was not told", "", err)
		}
	}
}

// statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements [http.ResponseWriter].
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController, by which answers are flushed.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// agent passes requests on to the agent of this machine.
func (s *Server) agent() http.Handler {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", s.config.AgentSocket)
	}, MaxIdleConns: 4, IdleConnTimeout: time.Minute}
	return &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: "agent"})
			p.Out.URL.Path = "/v1/" + strings.TrimPrefix(p.In.URL.Path, agentPrefix)
			p.Out.URL.RawPath = ""
			// The agent has no use for it, and it is nobody else's.
			p.Out.Header.Del("Authorization")
		},
		Transport: transport, FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			refuse(w, &client.Problem{Status: http.StatusBadGateway, What: "the agent does not answer", Where: s.config.AgentSocket, Why: err.Error(),
				Remedy: "`sudo heddle up --name " + s.config.Cluster + "` repairs the cluster; its agent's log is " + s.config.Logs + "/agent.log"})
		},
	}
}
