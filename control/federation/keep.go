package federation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/durable/objectfile"
	"heddle.io/heddle/control/registry"
)

// kept is what a controller knows of its place in the mesh, on disk. Beside it there are two files for each other cluster, so that
// what changes is written and nothing else. A controller that restarts while the primary or a link is dead goes on with them.
type kept struct {
	// Removed says why, and Membership which membership (by its time of joining), when the primary has taken this cluster
	// out of its mesh.
	Removed    string    `json:"removed,omitempty"`
	Membership time.Time `json:"membership,omitzero"`
}

// keptCluster is one other cluster, beside its services.
type keptCluster struct {
	About
	LastSeen  time.Time `json:"lastSeen,omitzero"`
	Connected bool      `json:"connected,omitempty"`
	Reachable bool      `json:"reachable,omitempty"`
}

// keptServices are those of a cluster, by name.
type keptServices = objectfile.Set[registry.ExportName, *registry.Export]

// onDisk is what was written of a cluster.
type onDisk struct {
	cluster  keptCluster
	services *registry.Exports
	file     *keptServices
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

// clustersDir holds two files for each other cluster. Clusters' names are DNS labels.
func clustersDir(c cluster.Cluster) string { return filepath.Join(dir(c), "clusters") }

func keptClusterPath(c cluster.Cluster, name string) string {
	return filepath.Join(clustersDir(c), name+".json")
}

// keptServicesPath is that of a cluster's services. It is written before the other file; alone it counts for nothing.
func keptServicesPath(c cluster.Cluster, name string) string {
	return filepath.Join(clustersDir(c), name+".services")
}

// readKeptCluster reads both files of a cluster.
func readKeptCluster(where cluster.Cluster, name string) (keptCluster, *registry.Exports, *keptServices, error) {
	var c keptCluster
	if _, err := readJSON(keptClusterPath(where, name), &c); err != nil {
		return c, nil, nil, err
	}
	file, services, err := objectfile.OpenSet[registry.ExportName, *registry.Export](keptServicesPath(where, name))
	if err == nil && services == nil {
		err = fmt.Errorf("%s: %w", keptServicesPath(where, name), os.ErrNotExist)
	}
	return c, (*registry.Exports)(nil).With(slices.Collect(maps.Values(services)), nil), file, err
}

// recall takes what was kept. It is a cache: what cannot be read of it, the cluster knows again once it is connected.
func (f *Federation) recall() error {
	where := f.config.Cluster
	if err := os.MkdirAll(clustersDir(where), 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	files, err := os.ReadDir(clustersDir(where))
	if err != nil {
		return fmt.Errorf("look for what is known of other clusters: %w", err)
	}
	if k, err := readKept(where); err != nil {
		f.config.Log.Warn("what was known of the mesh is lost until it is reached", "error", err)
	} else {
		f.written = &k
		if f.member && k.removedFrom(f.membership) {
			f.removed = k.Removed
		}
	}
	for _, file := range files {
		// Names have no dots. What turns out not to be known is removed: services alone, which a crash has left, too.
		name, kind, _ := strings.Cut(file.Name(), ".")
		f.unwritten[name] = true
		if kind != "json" || f.removed != "" {
			continue
		}
		c, services, disk, err := readKeptCluster(where, name)
		if err != nil {
			f.config.Log.Warn("what was known of a cluster is lost until it is reached", "cluster", name, "error", err)
			continue
		}
		f.onDisk[name] = &onDisk{cluster: c, services: services, file: disk}
		f.peers[name] = &entry{State: State{About: c.About, Services: services}, lastSeen: c.LastSeen, connected: c.Connected && f.member, reachable: c.Reachable}
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
	services := make(map[string]*registry.Exports, len(unwritten))
	for name := range unwritten {
		if e := f.peers[name]; e != nil {
			clusters[name] = keptCluster{About: e.About, LastSeen: e.lastSeen, Connected: e.connected, Reachable: e.reachable}
			services[name] = e.Services
		}
	}
	f.mu.Unlock()
	var errs []error
	for name := range unwritten {
		var err error
		if c, there := clusters[name]; there {
			err = f.keepCluster(name, c, services[name])
		} else {
			err = f.dropCluster(name)
		}
		if err != nil {
			errs = append(errs, err)
			f.mu.Lock()
			f.unwritten[name] = true
			f.mu.Unlock()
		}
	}
	if w := f.written; w == nil || w.Removed != now.Removed || !w.Membership.Equal(now.Membership) {
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

// keepCluster writes what differs from what is on disk of a cluster. Who has the file of what is beside its services has those, too.
func (f *Federation) keepCluster(name string, c keptCluster, services *registry.Exports) error {
	known, where := f.onDisk[name], f.config.Cluster
	disk := known
	if disk == nil {
		disk = &onDisk{file: objectfile.NewSet[registry.ExportName, *registry.Export](keptServicesPath(where, name))}
	}
	set, gone := services.Since(disk.services)
	if known == nil || len(set)+len(gone) > 0 {
		// Of what a failed write left, nothing is known.
		delete(f.onDisk, name)
		values := make(map[registry.ExportName]*registry.Export, len(set))
		for _, e := range set {
			values[e.Key()] = e
		}
		if err := disk.file.Update(values, gone, services.Len(), func() map[registry.ExportName]*registry.Export {
			all := make(map[registry.ExportName]*registry.Export, services.Len())
			for _, e := range services.Sorted() {
				all[e.Key()] = e
			}
			return all
		}); err != nil {
			return err
		}
	}
	if known == nil || !known.cluster.equal(c) {
		if err := durable.WriteJSON(keptClusterPath(where, name), c, 0o600); err != nil {
			if f.onDisk[name] == nil {
				// The next attempt begins anew.
				err = errors.Join(err, disk.file.Close())
			}
			return err
		}
	}
	f.onDisk[name] = &onDisk{cluster: c, services: services, file: disk.file}
	return nil
}

func (c keptCluster) equal(o keptCluster) bool {
	return c.About.equal(o.About) && c.LastSeen.Equal(o.LastSeen) && c.Connected == o.Connected && c.Reachable == o.Reachable
}

// dropCluster removes what is on disk of a cluster.
func (f *Federation) dropCluster(name string) error {
	var errs []error
	if disk := f.onDisk[name]; disk != nil {
		errs = append(errs, disk.file.Close())
		delete(f.onDisk, name)
	}
	errs = append(errs, durable.Remove(keptClusterPath(f.config.Cluster, name)), objectfile.Remove(keptServicesPath(f.config.Cluster, name)))
	return errors.Join(errs...)
}

// closeKept gives the files back.
func (f *Federation) closeKept() {
	f.keeping.Lock()
	defer f.keeping.Unlock()
	for name, disk := range f.onDisk {
		if err := disk.file.Close(); err != nil {
			f.config.Log.Warn("a file of what is known of another cluster", "cluster", name, "error", err)
		}
	}
	clear(f.onDisk)
}
