package registry

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/durable/objectfile"
)

// Bounds of what is kept of dependencies.
const (
	// MaxDependencies of one workload. One that uses more gets all services from then on: a list of that length saves nothing.
	MaxDependencies = 2000
	// maxDependents are the workloads that are remembered. Above that, the one whose dependencies were used longest ago goes.
	maxDependents = 10000
	// dependencyExpiry is how long a dependency is remembered after the last proxy that used it has gone.
	dependencyExpiry = 7 * 24 * time.Hour
)

// Dependencies keeps the hosts that workloads were seen to use, so that their next proxies begin with them. A host is used from
// when a proxy has asked for it until that proxy leaves. It is safe for concurrent use.
type Dependencies struct {
	// saving is held while the file is written; before mu. former is a file of another form, until it is written anew.
	saving sync.Mutex
	file   *objectfile.Set[string, dependentFile]
	former string

	mu        sync.Mutex
	now       func() time.Time
	workloads map[string]*dependent
	// unsaved are the workloads whose entries in the file are not what is known, or that have none.
	unsaved map[string]bool
	// learned and forgotten count hosts, crowded workloads that use too many; since the start.
	learned, forgotten, crowded int
}

// dependent is a workload.
type dependent struct {
	// hosts are nil for a workload that uses too many.
	hosts map[string]*use
	all   bool
}

// use of a host: by how many proxies at the moment, and when one did last.
type use struct {
	proxies int
	last    time.Time
}

// dependentFile is a workload on the disk, under namespace/name.
type dependentFile struct {
	// All says that the workload uses more than are kept.
	All bool `json:"all,omitempty"`
	// Used is when each host was used last.
	Used map[string]time.Time `json:"used,omitempty"`
}

// OpenDependencies reads what is kept in a file, whose name ends in .db; it need not exist, its directory must. A file that cannot be read
// is an error: without it, proxies that begin anew would have their first requests wait. Where versions before this have left one of JSON
// instead, that is read.
func OpenDependencies(path string, now func() time.Time) (*Dependencies, error) {
	d := &Dependencies{now: now, workloads: map[string]*dependent{}, unsaved: map[string]bool{}}
	file, all, err := objectfile.OpenSet[string, dependentFile](path)
	if err == nil && all == nil {
		var former struct {
			Workloads map[string]dependentFile `json:"workloads"`
		}
		d.former = strings.TrimSuffix(path, ".db") + ".json"
		if err = durable.ReadJSON(d.former, &former); errors.Is(err, os.ErrNotExist) {
			d.former, err = "", nil
		}
		all = former.Workloads
		for name := range all {
			d.unsaved[name] = true
		}
	}
	if err != nil {
		return nil, fmt.Errorf("dependencies of workloads: %w; restore the file, or remove it to have them learned anew", err)
	}
	d.file = file
	for name, kept := range all {
		w := &dependent{all: kept.All, hosts: map[string]*use{}}
		for host, last := range kept.Used {
			w.hosts[host] = &use{last: last}
		}
		d.workloads[name] = w
	}
	return d, nil
}

// Of is what a workload was seen to use, sorted; all says that it is too much to be kept.
func (d *Dependencies) Of(workload string) (hosts []string, all bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workloads[workload]
	if w == nil {
		return nil, false
	}
	return slices.Sorted(maps.Keys(w.hosts)), w.all
}

// Use notes hosts that one more proxy of a workload uses, and gives those that the workload was not known to use. all says that
// the workload uses too many from now on.
func (d *Dependencies) Use(workload string, hosts []string) (fresh []string, all bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workloads[workload]
	if w == nil {
		if len(d.workloads) >= maxDependents {
			d.dropOldest()
		}
		w = &dependent{hosts: map[string]*use{}}
		d.workloads[workload], d.unsaved[workload] = w, true
	}
	if w.all {
		return nil, true
	}
	for _, host := range hosts {
		u := w.hosts[host]
		if u == nil {
			u = &use{}
			w.hosts[host] = u
			fresh = append(fresh, host)
			d.learned++
		}
		u.proxies++
		u.last, d.unsaved[workload] = d.now(), true
	}
	if len(w.hosts) > MaxDependencies {
		w.hosts, w.all = nil, true
		d.unsaved[workload] = true
		d.crowded++
		return nil, true
	}
	return fresh, false
}

// Release says that a proxy that used hosts has gone.
func (d *Dependencies) Release(workload string, hosts []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workloads[workload]
	if w == nil {
		return
	}
	for _, host := range hosts {
		if u := w.hosts[host]; u != nil && u.proxies > 0 {
			u.proxies--
			u.last, d.unsaved[workload] = d.now(), true
		}
	}
}

// Expire forgets what nobody has used for long, and gives it by workload.
func (d *Dependencies) Expire() map[string][]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.now().Add(-dependencyExpiry)
	out := map[string][]string{}
	for name, w := range d.workloads {
		for host, u := range w.hosts {
			if u.proxies == 0 && u.last.Before(before) {
				delete(w.hosts, host)
				out[name] = append(out[name], host)
				d.forgotten++
				d.unsaved[name] = true
			}
		}
		if len(w.hosts) == 0 && !w.all {
			d.unsaved[name] = true
			delete(d.workloads, name)
		}
	}
	return out
}

// dropOldest makes room for another workload.
func (d *Dependencies) dropOldest() {
	oldest, at := "", time.Time{}
	for name, w := range d.workloads {
		last, used := time.Time{}, false
		for _, u := range w.hosts {
			used = used || u.proxies > 0
			if u.last.After(last) {
				last = u.last
			}
		}
		if !used && (oldest == "" || last.Before(at)) {
			oldest, at = name, last
		}
	}
	if w := d.workloads[oldest]; w != nil {
		d.forgotten += len(w.hosts)
		delete(d.workloads, oldest)
		d.unsaved[oldest] = true
	}
}

// Save keeps what has changed since it was saved last, at the cost of the workloads that this is of. What is learned after that and lost is
// asked for again.
func (d *Dependencies) Save() error {
	d.saving.Lock()
	defer d.saving.Unlock()
	d.mu.Lock()
	unsaved, size := d.unsaved, len(d.workloads)
	if len(unsaved) == 0 {
		d.mu.Unlock()
		return nil
	}
	d.unsaved = map[string]bool{}
	changed, gone := make(map[string]dependentFile, len(unsaved)), []string(nil)
	for name := range unsaved {
		if w := d.workloads[name]; w != nil {
			changed[name] = w.kept()
		} else {
			gone = append(gone, name)
		}
	}
	d.mu.Unlock()
	err := d.file.Update(changed, gone, size, d.kept)
	if err == nil && d.former != "" {
		if err = durable.Remove(d.former); err == nil {
			d.former = ""
		}
	}
	if err != nil {
		d.mu.Lock()
		maps.Copy(d.unsaved, unsaved)
		d.mu.Unlock()
		return fmt.Errorf("keep dependencies of workloads: %w", err)
	}
	return nil
}

// kept is everything, as it is kept.
func (d *Dependencies) kept() map[string]dependentFile {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[string]dependentFile, len(d.workloads))
	for name, w := range d.workloads {
		out[name] = w.kept()
	}
	return out
}

// kept is the workload, as it is kept.
func (w *dependent) kept() dependentFile {
	out := dependentFile{All: w.all, Used: make(map[string]time.Time, len(w.hosts))}
	for host, u := range w.hosts {
		out.Used[host] = u.last.UTC().Truncate(time.Second)
	}
	return out
}

// Close leaves the file to who comes next.
func (d *Dependencies) Close() error {
	d.saving.Lock()
	defer d.saving.Unlock()
	return d.file.Close()
}

// Counts of dependencies.
type Counts struct {
	// Workloads and Hosts that are kept now.
	Workloads, Hosts int
	// Learned and Forgotten hosts, and workloads that came to use too many, since the start.
	Learned, Forgotten, Crowded int
}

// Counts what is kept and what became of it.
func (d *Dependencies) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := Counts{Workloads: len(d.workloads), Learned: d.learned, Forgotten: d.forgotten, Crowded: d.crowded}
	for _, w := range d.workloads {
		c.Hosts += len(w.hosts)
	}
	return c
}
