package server

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/connlimit"
	"heddle.io/heddle/control/server/client"
)

// need says what a request needs, before anything but its method and path was read.
type need func(*http.Request) access.Need

// everywhere needs a role for all namespaces.
func everywhere(role access.Role, to string) need {
	return func(*http.Request) access.Need {
		return access.Need{Role: role, Namespace: access.Everywhere, To: to}
	}
}

// within needs a role in the namespace that the path names.
func within(role access.Role, to string) need {
	return func(r *http.Request) access.Need {
		return access.Need{Role: role, Namespace: r.PathValue("namespace"), To: to}
	}
}

// somewhere needs a role in any namespace: the handler leaves out what the caller may not see, or asks for more once it
// knows what the request is about.
func somewhere(role access.Role, to string) need {
	return func(*http.Request) access.Need { return access.Need{Role: role, Somewhere: true, To: to} }
}

// anybody needs no role, only somebody.
func anybody(*http.Request) access.Need { return access.Need{Role: access.None, Somewhere: true} }

// peerKey holds the peer of a connection, an [access.Peer], and connKey the connection, a [net.Conn].
type (
	peerKey struct{}
	connKey struct{}
)

// withPeer remembers a connection, and who is at its other end.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	ctx = context.WithValue(ctx, connKey{}, conn)
	if _, local := conn.LocalAddr().(*net.UnixAddr); !local {
		return ctx
	}
	peer, err := access.PeerOf(conn)
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, peer)
}

// authenticated finds out who calls before anything else is done with a request. Who is nobody is answered here.
func (s *Server) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown := access.Request{From: r.RemoteAddr, Authorization: r.Header.Get("Authorization")}
		if peer, ok := r.Context().Value(peerKey{}).(access.Peer); ok {
			shown.Peer = &peer
		}
		if r.TLS != nil {
			shown.TLS = func() ([]*x509.Certificate, bool, error) { return s.verified(r.TLS) }
		}
		caller, err := s.authenticator.Caller(r.Context(), shown)
		if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok {
			// Whoever has no role loses the place to others when there are too many.
			connlimit.Vouch(conn, err == nil && caller.May(access.Need{Role: access.Viewer, Somewhere: true}) == nil)
		}
		if err != nil {
			var problem *client.Problem
			if errors.As(err, &problem) && problem.Status == http.StatusUnauthorized {
				s.unauthorized(w, r, shown, problem)
				return
			}
			refuseError(w, "it is not known who you are", "", err)
			return
		}
		ctx := access.With(r.Context(), caller)
		if streams(r) && !caller.Agent() {
			var cancel context.CancelFunc
			ctx, cancel = s.standing(ctx, shown, caller)
			defer cancel()
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// streams says whether the answer to a request goes on.
func streams(r *http.Request) bool {
	q := r.URL.Query()
	return q.Get("watch") != "" || q.Get("follow") != ""
}

// lookAgain is how often it is looked whether the caller of a stream still may have it.
const lookAgain = 5 * time.Second

// standing gives a context that ends when the caller is not who it was any more, or has other roles.
func (s *Server) standing(ctx context.Context, shown access.Request, caller *access.Caller) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		ticker := time.NewTicker(s.lookAgain)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if now, err := s.authenticator.Caller(ctx, shown); err != nil || !slices.Equal(now.Grants, caller.Grants) {
				cancel()
				return
			}
		}
	}()
	return ctx, cancel
}

func (s *Server) unauthorized(w http.ResponseWriter, r *http.Request, shown access.Request, problem *client.Problem) {
	s.unauthenticated.Add(1)
	from := shown.From
	if shown.Peer != nil {
		from = shown.Peer.From()
	}
	s.config.Audit.Refused(audit.Record{Who: "unknown", From: from, Action: attempted(r), Why: problem.What})
	w.Header().Set("WWW-Authenticate", "Bearer")
	refuse(w, problem)
}

// attempted is a request as the record of a refusal has it.
func attempted(r *http.Request) audit.Action {
	const most = 256
	path := r.URL.Path
	if len(path) > most {
		path = path[:most] + "…"
	}
	return audit.Action(r.Method + " " + tokens.ReplaceAllString(path, "$1…"))
}

// tokens are of the API and for joining; people put them where they do not belong.
var tokens = regexp.MustCompile(`(hd[al]1\.[^./]*)[^/]*`)

// may answers a request whose caller has not the role, and says whether it has.
func (s *Server) may(w http.ResponseWriter, r *http.Request, n access.Need) bool {
	problem := access.From(r.Context()).May(n)
	if problem == nil {
		return true
	}
	s.deny(w, r, problem)
	return false
}

// deny answers a request that its caller may not make.
func (s *Server) deny(w http.ResponseWriter, r *http.Request, problem *client.Problem) {
	s.forbidden.Add(1)
	caller := access.From(r.Context())
	s.config.Audit.Refused(audit.Record{Who: caller.String(), From: caller.From, Action: attempted(r), Why: problem.What + ": " + problem.Why})
	refuse(w, problem)
}

// guarded is a handler for those who have the role.
func (s *Server) guarded(n need, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.may(w, r, n(r)) {
			next(w, r)
		}
	}
}

// agentsOnly is a handler for the cluster's agent alone: root on this machine, who attests workloads. No role includes it.
func (s *Server) agentsOnly(to string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		caller := access.From(r.Context())
		if !caller.Agent() {
			s.deny(w, r, &client.Problem{Status: http.StatusForbidden, What: caller.String() + " may not " + to,
				Why: "only the cluster's agent may, which is root on the cluster's machine and calls by its socket", Remedy: "run workloads by the agent: `heddle apply`"})
			return
		}
		next(w, r)
	}
}

// recorded does what changes something once it is recorded who does it. What do tells of it beside the error is recorded
// with the end.
func (s *Server) recorded(ctx context.Context, r audit.Record, do func() (detail string, err error)) error {
	caller := access.From(ctx)
	r.Who, r.From, r.Caller = caller.String(), caller.From, charged(caller)
	ended, err := s.config.Audit.Begin(r)
	if err != nil {
		return err
	}
	detail, err := do()
	ended(detail, err)
	return err
}

// charged is whose part of the audit log a caller's changes are taken from; nobody's for root, who could remove the log.
// Tokens of a namespace have one: who makes them must not have another with each.
func charged(caller *access.Caller) string {
	switch {
	case caller.Agent():
		return ""
	case caller.Kind != access.KindToken:
		return caller.String()
	}
	of := make([]string, 0, len(caller.Grants))
	for _, g := range caller.Grants {
		of = append(of, g.Namespace)
	}
	return "tokens of " + strings.Join(of, ", ")
}

// needOfAgent is what a request needs that is passed on to the agent, and what it is called in the audit log; "" when it
// changes nothing.
func needOfAgent(method, path string) (access.Need, audit.Action) {
	parts := strings.Split(strings.TrimPrefix(path, agentPrefix), "/")
	read := method == http.MethodGet || method == http.MethodHead
	if len(parts) >= 4 && parts[0] == "replicas" {
		in := func(role access.Role, to string) access.Need {
			return access.Need{Role: role, Namespace: parts[1], To: to}
		}
		switch what := parts[3]; {
		case what == "resolve" && read:
			return in(access.Viewer, "look up names as a workload"), ""
		case what == "admin" && read && shows[strings.Join(parts[4:], "/")]:
			return in(access.Viewer, "look at a proxy"), ""
		case what == "admin" && read:
			return in(access.Editor, "use this part of a proxy's admin interface"), ""
		case what == "admin":
			return in(access.Editor, "change a proxy by its admin interface"), audit.UseProxyAdmin
		case what == "rotate":
			return in(access.Editor, "renew a workload's certificate"), audit.RotateWorkload
		case what == "handshake" || what == "call":
			return in(access.Editor, "make connections as a workload"), ""
		}
	}
	if read && len(parts) == 1 && (parts[0] == "status" || parts[0] == "checks" || parts[0] == "bypass" || parts[0] == "metrics") {
		return access.Need{Role: access.Viewer, Namespace: access.Everywhere, To: "see what the agent runs"}, ""
	}
	return access.Need{Role: access.Admin, Namespace: access.Everywhere, To: "command the agent"}, audit.CommandAgent + audit.Action(strings.Join(parts, "."))
}

// shows are the pages of a proxy's admin interface that only show something, and no secret.
var shows = map[string]bool{
	"clusters": true, "listeners": true, "config_dump": true, "stats": true, "stats/prometheus": true, "certs": true, "server_info": true,
	"ready": true, "memory": true, "init_dump": true,
}
