package federation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
)

// kept is what a controller knows of its place in the mesh, on disk. Beside it there is a file for each other cluster, so that
// what changes is written and nothing else. A controller that restarts while the primary or a link is dead goes on with them.
type kept struct {
	// Clusters is how earlier versions kept them; it is read once.
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
		return kept{}, fmt.Errorf("what is known of the mesh: %w; remove the file, it is made again when the primary is reached", err)
	}
	return k, nil
}

// clustersDir holds a file for each other cluster. Clusters' names are DNS labels.
func clustersDir(c cluster.Cluster) string { return filepath.Join(dir(c), "clusters") }

func keptClusterPath(c cluster.Cluster, name string) string {
	return filepath.Join(clustersDir(c), name+".json")
}

// recall takes what was kept. It is a cache: what cannot be read of it, the cluster knows again once it is connected.
func (f *Federation) recall() error {
	where := f.config.Cluster
	if err := os.MkdirAll(clustersDir(where), 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	files, err := filepath.Glob(keptClusterPath(where, "*"))
	if err != nil {
		return fmt.Errorf("look for what is known of other clusters: %w", err)
	}
	clusters := map[string]keptCluster{}
	if k, err := readKept(where); err != nil {
		f.config.Log.Warn("what was known of the mesh is lost until it is reached", "error", err)
	} else {
		f.written = &k
		for name, c := range k.Clusters {
			clusters[name] = c
			f.unwritten[name] = true
		}
		if f.member && k.removedFrom(f.membership) {
			f.removed = k.Removed
		}
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		var c keptCluster
		if _, err := readJSON(file, &c); err != nil {
			f.config.Log.Warn("what was known of a cluster is lost until it is reached", "cluster", name, "error", err)
			f.unwritten[name] = true
			continue
		}
		clusters[name] = c
		// It is newer than what an earlier version kept, of which no more than a crash is left.
		delete(f.unwritten, name)
	}
	for name, c := range clusters {
		if f.removed != "" {
			f.unwritten[name] = true // Its file was to be removed.
			continue
		}
		f.peers[name] = &entry{State: c.State, lastSeen: c.LastSeen, connected: c.Connected && f.member, reachable: c.Reachable}
	}
	f.keepNow()
	return nil
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

// keepNow writes what is not on disk yet.
func (f *Federation) keepNow() {
	f.keeping.Lock()
	defer f.keeping.Unlock()
	f.mu.Lock()
	now := kept{Removed: f.removed}
	if f.removed != "" {
		now.Membership = f.membership.Joined
	}
	unwritten := f.unwritten
	f.unwritten = map[string]bool{}
	clusters := make(map[string]keptCluster, len(unwritten))
	for name := range unwritten {
		if e := f.peers[name]; e != nil {
			clusters[name] = keptCluster{State: e.State, LastSeen: e.lastSeen, Connected: e.connected, Reachable: e.reachable}
		}
	}
	f.mu.Unlock()
	var errs []error
	for name := range unwritten {
		path := keptClusterPath(f.config.Cluster, name)
		var err error
		if c, there := clusters[name]; there {
			err = durable.WriteJSON(path, c, 0o600)
		} else {
			err = durable.Remove(path)
		}
		if err != nil {
			errs = append(errs, err)
			f.mu.Lock()
			f.unwritten[name] = true
			f.mu.Unlock()
		}
	}
	// After the clusters, which an earlier version kept in this file.
	if w := f.written; w == nil || len(w.Clusters) > 0 || w.Removed != now.Removed || !w.Membership.Equal(now.Membership) {
		err := durable.WriteJSON(keptPath(f.config.Cluster), now, 0o600)
		if err == nil {
			f.written = &now
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		f.counters.add(countNotKept)
		f.config.Log.Warn("what is known of other clusters is not kept: a restarted controller has to be told again", "error", err)
	}
}
