package agent

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"heddle.io/heddle/control/agent/allocation"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/agent/users"
	"heddle.io/heddle/control/durable"
)

// kept is what a new agent needs to find the replica again.
type kept struct {
	Hash     string          `json:"hash"`
	App      *process.Record `json:"app,omitempty"`
	Proxy    *process.Record `json:"proxy,omitempty"`
	Restarts int             `json:"restarts"`
	// Ended says that the application ended and its restart policy keeps it so.
	Ended string `json:"ended,omitempty"`
	// ProxyReady and AppReady as they were: a new agent goes by them until it has asked itself, so that a replica does
	// not lose its traffic because its agent was replaced.
	ProxyReady bool `json:"proxyReady"`
	AppReady   bool `json:"appReady"`
	// User and ProxyUser are the replica's user ids.
	User      int `json:"user"`
	ProxyUser int `json:"proxyUser"`
}

// usersOfReplicas are the user ids that replicas on this machine have, by owner: what they kept themselves, and where that cannot be read
// those that their processes run with.
func (a *Agent) usersOfReplicas() (map[string]int, error) {
	known := map[string]int{}
	files, err := filepath.Glob(filepath.Join(a.config.Cluster.Workload("*", "*"), "state.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		s := replicaSpec{Namespace: filepath.Base(filepath.Dir(dir)), Name: filepath.Base(dir)}
		var state kept
		if process.ReadRecord(file, &state) != nil {
			r := replica{agent: a, spec: s}
			state.User, state.ProxyUser = a.hierarchies.User(r.cgroup("app"), users.Ours), a.hierarchies.User(r.cgroup("proxy"), users.Ours)
		}
		known[s.key()], known[allocation.ProxyOf(s.key())] = state.User, state.ProxyUser
	}
	return known, nil
}

// resume takes over the readiness of a replica that runs already, before anyone is told of it.
func (r *replica) resume() {
	var state kept
	if process.ReadRecord(r.statePath(), &state) != nil || state.Hash != r.hash || !network.Exists(r.netns) {
		return
	}
	addresses, err := r.agent.addresses.Get(r.spec.key())
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.address = addresses[0]
	r.user, r.proxyUser = state.User, state.ProxyUser
	r.restarts = state.Restarts
	r.proxyReady = state.ProxyReady && state.Proxy != nil && state.Proxy.Alive()
	r.appReady = state.AppReady && state.App != nil && state.App.Alive()
	if r.readyLocked() {
		r.phase = phaseReady
	}
}

// readKept returns what an earlier agent kept of this very spec. Processes of another one are stopped. lost says that it
// could not be read: what runs is the truth then.
func (r *replica) readKept() (state kept, lost bool) {
	if err := durable.Sweep(r.dir, time.Now().Add(-unfinishedAge)); err != nil {
		r.log.Warn("files that a killed writer left are still there", "error", err)
	}
	err := process.ReadRecord(r.statePath(), &state)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.log.Warn("kept state is unreadable; looking for what runs", "error", err)
		lost, state = true, kept{Hash: r.hash}
	}
	if (err == nil || lost) && state.Hash == r.hash && network.Exists(r.netns) {
		return state, lost
	}
	for _, record := range []*process.Record{state.App, state.Proxy} {
		if record != nil {
			record.Kill(stopGrace)
		}
	}
	r.agent.hierarchies.KillMembers(r.cgroup("app"))
	r.agent.hierarchies.KillMembers(r.cgroup("proxy"))
	r.inherited = network.Exists(r.netns)
	return kept{}, false
}

func (r *replica) statePath() string { return filepath.Join(r.dir, "state.json") }

// find finds one of the replica's two processes that an earlier agent started; ended says that it has ended since.
func (r *replica) find(part string, record *process.Record, lost bool) (p *process.Process, ended bool) {
	return process.Find(process.Search{Hierarchies: r.agent.hierarchies, Group: r.cgroup(part), File: r.launchFile(part), Record: record, Lost: lost, Label: r.hash})
}

func (r *replica) launchFile(part string) string { return filepath.Join(r.dir, part+".json") }

// note keeps that a process is about to run as one of the replica's two, before it does; nil that there is none.
func (r *replica) note(part string, record *process.Record) error {
	r.mu.Lock()
	if record == nil {
		delete(r.noted, part)
	} else {
		r.noted[part] = record
	}
	r.mu.Unlock()
	return r.save()
}

// keep writes what the next agent needs. A failure is told; the next change tries again.
func (r *replica) keep() {
	if err := r.save(); err != nil {
		r.log.Warn("the replica's state is not kept", "error", err)
	}
}

func (r *replica) save() error {
	// One at a time, so that the last state is the one that stays.
	r.keeping.Lock()
	defer r.keeping.Unlock()
	r.mu.Lock()
	state := kept{Hash: r.hash, Restarts: r.restarts, Ended: r.ended, ProxyReady: r.proxyReady, AppReady: r.appReady, App: r.noted["app"], Proxy: r.noted["proxy"],
		User: r.user, ProxyUser: r.proxyUser}
	r.mu.Unlock()
	return process.WriteRecord(r.statePath(), state)
}
