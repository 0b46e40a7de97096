package xds

import (
	"cmp"
	"slices"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
)

// State of a proxy's configuration of one type, in istioctl's words.
type State string

const (
	// Synced means that the proxy acknowledged what was sent last.
	Synced State = "SYNCED"
	// Stale means that what was sent last is not acknowledged yet.
	Stale State = "STALE"
	// Refused means that the proxy rejected what was sent last and runs what it had.
	Refused State = "NACK"
	// NotSent means that the proxy asked, and there is nothing for it.
	NotSent State = "NOT SENT"
	// NotAsked means that the proxy did not ask for this type.
	NotAsked State = "IGNORED"
)

// NodeStatus says what one connected proxy runs.
type NodeStatus struct {
	// ID is the node's identifier, `sidecar~address~name.namespace~domain`.
	ID string `json:"id"`
	// Connected since.
	Connected time.Time `json:"connected"`
	// Revision of the store that its configuration was made from.
	Revision int64 `json:"revision"`
	// Synced says that the proxy acknowledged everything that was sent to it.
	Synced bool `json:"synced"`
	// Failure says why its configuration could not be made; empty when it could.
	Failure string `json:"failure,omitempty"`
	// Types in the order CDS, LDS, EDS, RDS, SDS.
	Types []TypeStatus `json:"types"`
}

// TypeStatus is the state of one resource type on a proxy.
type TypeStatus struct {
	// Type is CDS, LDS, EDS, RDS or SDS.
	Type  string `json:"type"`
	State State  `json:"state"`
	// Version acknowledged last.
	Version string `json:"version,omitempty"`
	// Resources of this type that the proxy is to run.
	Resources int `json:"resources"`
	// Changed is when the state changed last.
	Changed time.Time `json:"changed,omitzero"`
	// Reason of a refusal, in the proxy's words.
	Reason string `json:"reason,omitempty"`
}

// node is a connected proxy. The server's lock guards it.
type node struct {
	id        string
	identity  *core.Node
	connected time.Time
	streams   int
	newest    int64
	revision  int64
	failure   string
	resources Resources
	// clusters is the version of the clusters set last; held says that newer ones wait for these to be answered.
	clusters string
	held     bool
	// watching says that the cache sends newer clusters as soon as it has them.
	watching bool
	types    map[string]*subscription
}

// subscription is what was sent of one type, and what came back.
type subscription struct {
	nonce, pending, version, reason string
	state                           State
	changed                         time.Time
}

func newNode(identity *core.Node, now time.Time) *node {
	return &node{id: identity.GetId(), identity: identity, connected: now, types: map[string]*subscription{}}
}

func (n *node) sent(typeURL, nonce, version string, now time.Time) {
	t := n.types[typeURL]
	if t == nil {
		t = &subscription{}
		n.types[typeURL] = t
	}
	t.nonce, t.pending, t.state, t.changed = nonce, version, Stale, now
}

func (n *node) answered(r exchange, now time.Time) {
	t := n.types[r.typeURL]
	if t == nil {
		t = &subscription{state: NotSent, changed: now}
		if r.resumes {
			// What differs follows, and makes it stale until it is acknowledged.
			t.state = Synced
		}
		n.types[r.typeURL] = t
		return
	}
	if r.nonce == "" || r.nonce != t.nonce {
		return // A new subscription, or an answer to something older than what was sent last.
	}
	t.changed = now
	if r.refused {
		t.state, t.reason = Refused, r.failure
		return
	}
	t.state, t.reason, t.version = Synced, "", t.pending
}

func (n *node) status() NodeStatus {
	status := NodeStatus{ID: n.id, Connected: n.connected, Revision: n.revision, Failure: n.failure, Synced: n.failure == ""}
	for _, name := range typeNames {
		one := TypeStatus{Type: name.short, State: NotAsked, Resources: len(n.resources[name.url])}
		if t := n.types[name.url]; t != nil {
			one.State, one.Version, one.Changed, one.Reason = t.state, t.version, t.changed, t.reason
		}
		status.Synced = status.Synced && one.State != Stale && one.State != Refused
		status.Types = append(status.Types, one)
	}
	return status
}

// Nodes lists the connected proxies, sorted by identifier.
func (s *Server) Nodes() []NodeStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]NodeStatus, 0, len(s.nodes))
	for _, n := range s.nodes {
		all = append(all, n.status())
	}
	slices.SortFunc(all, func(a, b NodeStatus) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Unsettled lists the connected proxies that have not acknowledged the newest listeners and clusters. A proxy that refused
// them runs what it had and is not waited for.
func (s *Server) Unsettled() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, n := range s.nodes {
		if !s.settled(n) {
			out = append(out, n.id)
		}
	}
	slices.Sort(out)
	return out
}

func (s *Server) settled(n *node) bool {
	newest, err := s.cache.GetSnapshot(n.id)
	if n.held || n.failure != "" || err != nil {
		return false
	}
	for _, url := range []string{resource.ClusterType, resource.ListenerType} {
		t := n.types[url]
		if t == nil || t.state == Refused || t.state == NotSent && len(n.resources[url]) == 0 {
			continue
		}
		// One that resumed a stream and was sent nothing since has no version.
		if t.state != Synced || t.version != "" && t.version != newest.GetVersion(url) {
			return false
		}
	}
	return true
}

// Config returns what a connected proxy is to run, by short type name; false when no such proxy is connected.
func (s *Server) Config(id string) (map[string][]proto.Message, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[id]
	if n == nil {
		return nil, false
	}
	config := map[string][]proto.Message{}
	for _, name := range typeNames {
		for _, r := range n.resources[name.url] {
			config[name.short] = append(config[name.short], r)
		}
	}
	return config, true
}

func shortName(url string) string {
	for _, name := range typeNames {
		if name.url == url {
			return name.short
		}
	}
	return url
}
