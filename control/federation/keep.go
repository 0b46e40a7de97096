package federation

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"heddle.io/heddle/control/cluster"
)

// kept is what a controller knows of other clusters, on disk: one that restarts while the primary or a link is dead goes
// on with it.
type kept struct {
	Clusters map[string]keptCluster `json:"clusters,omitempty"`
	// Removed says why, and Membership which membership (by its time of joining), when the primary has taken this cluster
	// out of its mesh.
	Removed    string    `json:"removed,omitempty"`
	Membership time.Time `json:"membership,omitzero"`
}

// keptCluster is one other cluster.
type keptCluster struct {
	State
	LastSeen  time.Time `json:"lastSeen,omitzero"`
	Connected bool      `json:"connected,omitempty"`
	Reachable bool      `json:"reachable,omitempty"`
}

// removedFrom says whether the cluster was taken out of the mesh that it joined by that membership. Joining again makes
// another one.
func (k kept) removedFrom(m Membership) bool {
	return k.Removed != "" && k.Membership.Equal(m.Joined)
}

func keptPath(c cluster.Cluster) string { return filepath.Join(dir(c), "state.json") }

func readKept(c cluster.Cluster) (kept, error) {
	var k kept
	if _, err := readJSON(keptPath(c), &k); err != nil {
		return kept{}, fmt.Errorf("what is known of other clusters: %w; remove the file, it is made again when the primary is reached", err)
	}
	return k, nil
}

// keepLoop writes what is known after it changed, at most once in a while, and at the end.
func (f *Federation) keepLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			select {
			case <-f.unkept:
				f.keepNow()
			default:
			}
			return
		case <-f.unkept:
		}
		f.keepNow()
		select {
		case <-ctx.Done():
		case <-time.After(f.config.Pace.Keep):
		}
	}
}

func (f *Federation) keepNow() {
	f.keeping.Lock()
	defer f.keeping.Unlock()
	f.mu.Lock()
	k := kept{Clusters: map[string]keptCluster{}, Removed: f.removed}
	if f.removed != "" {
		k.Membership = f.membership.Joined
	}
	for name, e := range f.book {
		k.Clusters[name] = keptCluster{State: e.State, LastSeen: e.lastSeen, Connected: e.connected, Reachable: e.reachable}
	}
	f.mu.Unlock()
	if err := writeJSON(keptPath(f.config.Cluster), k); err != nil {
		f.counters.add(countNotKept)
		f.config.Log.Warn("what is known of other clusters is not kept: a restarted controller has to be told again", "error", err)
	}
}
