package xds

import (
	"context"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// Clusters that changed are sent before their endpoints, and a proxy takes a changed cluster into use once it has heard
// its endpoints after it. Were a third version made while the proxy has not answered the second yet, its endpoints could
// overtake its clusters, and these would wait for endpoints for ever. So changed clusters wait for the answer to those
// sent before; whatever else changes does not.

// holdLimit is how long newer clusters wait for an answer: a proxy that takes longer is stuck already.
const holdLimit = 10 * time.Second

// hold says whether a version of the clusters must wait. It is tried again when the answer is there, or the limit over.
// An answer counts once the cache waits for newer clusters on the proxy's behalf: before, it would send newer endpoints
// and not the clusters that they belong to. What need not wait counts as unanswered from here on: between handing it to
// the cache and its being sent there must be no gap for a third version.
func (s *Server) hold(n *node, clusters string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := n.types[resource.ClusterType]
	if sent == nil || clusters == n.clusters {
		n.held = false
		return false
	}
	left := holdLimit - s.now().Sub(sent.changed)
	if (sent.state == Stale || !n.watching) && left > 0 {
		if !n.held {
			n.held = true
			time.AfterFunc(left, func() { s.release(n.id) })
		}
		return true
	}
	n.held = false
	if n.watching && sent.version == clusters {
		// The proxy has them already: nothing is sent, and nothing comes back.
		if sent.state == Stale {
			sent.state = Synced
		}
		return false
	}
	sent.state, sent.nonce, sent.changed = Stale, "", s.now()
	return false
}

// release makes a proxy's configuration that was held.
func (s *Server) release(id string) {
	s.mu.Lock()
	n, generator := s.nodes[id], s.generator
	held := n != nil && n.held && generator != nil
	s.mu.Unlock()
	if held {
		// Not in the stream's own goroutine, which has to take what this sends.
		go func() {
			s.program(context.Background(), n, generator)
			s.onChange()
		}()
	}
}

// watches notes whether the cache waits for newer clusters on a proxy's behalf.
func (s *Server) watches(id string, waiting bool) {
	s.mu.Lock()
	if n := s.nodes[id]; n != nil {
		n.watching = waiting
	}
	s.mu.Unlock()
	if waiting {
		s.release(id)
	}
}

// watched tells when the cache waits for newer clusters for a proxy, which it does once the proxy answered the last.
type watched struct {
	cache.SnapshotCache
	waiting func(node string, waiting bool)
}

// CreateWatch implements [cache.ConfigWatcher].
func (w watched) CreateWatch(r *cache.Request, sub cache.Subscription, to chan cache.Response) (func(), error) {
	cancel, err := w.SnapshotCache.CreateWatch(r, sub, to)
	w.after(r.GetTypeUrl(), r.GetNode(), cancel)
	return cancel, err
}

// CreateDeltaWatch implements [cache.ConfigWatcher].
func (w watched) CreateDeltaWatch(r *cache.DeltaRequest, sub cache.Subscription, to chan cache.DeltaResponse) (func(), error) {
	cancel, err := w.SnapshotCache.CreateDeltaWatch(r, sub, to)
	w.after(r.GetTypeUrl(), r.GetNode(), cancel)
	return cancel, err
}

// after looks at a watch that was just made: one that was answered at once cannot be cancelled and waits for nothing.
func (w watched) after(typeURL string, node *core.Node, cancel func()) {
	if typeURL == resource.ClusterType {
		w.waiting(node.GetId(), cancel != nil)
	}
}
