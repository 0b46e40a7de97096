package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"heddle.io/heddle/control/agent/bypass"
	"heddle.io/heddle/control/agent/capture"
	"heddle.io/heddle/control/agent/isolation"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/seal"
)

// Running returns the record of the cluster's agent, or false when none runs.
func Running(c cluster.Cluster) (process.Record, bool) {
	var record process.Record
	if err := process.ReadRecord(recordPath(c), &record); err != nil {
		return process.Record{}, false
	}
	return record, record.Alive()
}

// dying is how long an agent that was killed may take to be gone: its memory is given back first.
const dying = 2 * time.Second

// Serving is [Running], but for an agent that is about to be gone: one that answers nothing has a moment to end. That its socket takes a
// connection says little, which the kernel does until a killed one has given its sockets back.
func Serving(ctx context.Context, c cluster.Cluster) (process.Record, bool) {
	record, alive := Running(c)
	if !alive {
		return record, false
	}
	ctx, cancel := context.WithTimeout(ctx, dying)
	defer cancel()
	if askAgent(ctx, c, http.MethodGet, "/v1/status") == nil {
		return record, true
	}
	if agent := process.Adopt(record); agent != nil {
		select {
		case <-agent.Done():
		case <-ctx.Done():
		}
	}
	return Running(c)
}

// Began says whether an agent has started anything of the cluster's since the cluster was last removed.
func Began(c cluster.Cluster) bool {
	for _, path := range append([]string{c.AgentSocket()}, recordsOfServices(c)...) {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return false
}

func recordsOfServices(c cluster.Cluster) []string {
	var paths []string
	for _, name := range services {
		paths = append(paths, serviceRecordPath(c, name))
	}
	return paths
}

// shutdownTimeout is how long an agent may take to stop everything in order, before it is stopped by force.
const shutdownTimeout = 45 * time.Second

// Keep says what [Down] leaves of a cluster's data.
type Keep int

const (
	// KeepKeys leaves the keys of Secrets if the Secrets themselves are elsewhere, see [KeysOfOthers].
	KeepKeys Keep = iota
	// KeepNothing removes all of it.
	KeepNothing
	// KeepData leaves all of it.
	KeepData
)

// KeysOfOthers is the file with the keys of Secrets, if it is in the cluster's data and some of what it encrypts is not: the
// objects are, or were before a cluster of that name was made anew, in a store that outlives the cluster on this machine,
// and without the keys its Secrets are lost. It is empty otherwise.
func KeysOfOthers(c cluster.Cluster) string {
	o, err := c.Options()
	if err != nil {
		o = cluster.Options{}
	}
	file := c.SecretsKey(o)
	if _, err := os.Stat(file); err != nil || !strings.HasPrefix(file, c.Data()+"/") {
		return ""
	}
	// The store of its own goes with it. An external one that the cluster had before, or has now, is said by the keys.
	if _, err := os.Stat(filepath.Join(c.Data(), "store", "etcd")); err == nil && o.Etcd.Endpoints == "" && !seal.ForOthers(file) {
		return ""
	}
	return file
}

// Down stops a cluster and removes everything that it made on this machine, with its data but for what is to be kept. It works on
// whatever is there: a running cluster, the rest of a crashed or half-started one, or nothing at all. Everything is
// tried even when a part fails; the errors say what is left.
func Down(ctx context.Context, c cluster.Cluster, keep Keep, log *slog.Logger) error {
	var errs []error
	// An agent in the calling process, which could not start, is none to stop.
	if record, alive := Running(c); alive && record.PID != os.Getpid() {
		agent := process.Adopt(record)
		if err := askShutdown(ctx, c); err != nil {
			log.Debug("agent does not take orders; stopping it", "error", err)
		} else if agent != nil {
			ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
			select {
			case <-agent.Done():
			case <-ctx.Done():
			}
			cancel()
		}
		if agent != nil && agent.Running() {
			// Killed, not asked: it is to leave what runs alone, which is removed below.
			if err := syscall.Kill(record.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, fmt.Errorf("stop agent: %w", err))
			}
			<-agent.Done()
		}
	}
	for _, path := range recordsOfServices(c) {
		var record process.Record
		if err := process.ReadRecord(path, &record); err == nil {
			record.Kill(stopGrace)
		}
	}
	return errors.Join(append(errs, removeAll(c, keep))...)
}

func removeAll(c cluster.Cluster, keep Keep) error {
	var errs []error
	hierarchies, err := process.Hierarchy()
	if err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, hierarchies.Remove(c.Cgroup()))
	}
	// Nothing has a connection any longer.
	errs = append(errs, bypass.Detach(c.Bypass()), capture.Detach(c.Capture()))
	names, err := network.Names(c.NetnsPrefix())
	if err != nil {
		errs = append(errs, err)
	}
	for _, name := range names {
		if network.Exists(name) {
			// Processes outside of the control groups: started by hand with `ip netns exec`, for example.
			if pids, err := network.PIDs(name); err == nil {
				for _, pid := range pids {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
		errs = append(errs, network.Delete(name))
	}
	errs = append(errs, network.RemoveBridge(c), network.RemoveHost(c), isolation.Remove(c), network.RestoreForwarding(c), os.RemoveAll(c.Run()))
	errs = append(errs, removeData(c, keep))
	// The roots go with the last cluster; while others have something there, they stay.
	_ = os.Remove(c.DataRoot)
	return errors.Join(errs...)
}

func removeData(c cluster.Cluster, keep Keep) error {
	keys := KeysOfOthers(c)
	switch {
	case keep == KeepData:
		return nil
	case keep == KeepKeys && keys != "":
		return removeBut(c.Data(), keys)
	}
	return os.RemoveAll(c.Data())
}

// removeBut removes what is in a directory, but for one file below it.
func removeBut(dir, file string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		switch path := filepath.Join(dir, e.Name()); {
		case path == file:
		case strings.HasPrefix(file, path+"/"):
			errs = append(errs, removeBut(path, file))
		default:
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// Traces lists what a cluster has left on this machine; nothing after Down.
func Traces(c cluster.Cluster) []string {
	var out []string
	names, err := network.Names(c.NetnsPrefix())
	if err != nil {
		out = append(out, err.Error())
	}
	out = append(out, names...)
	if _, err := net.InterfaceByName(c.Bridge()); err == nil {
		out = append(out, "interface "+c.Bridge())
	}
	out = append(out, isolation.Traces(c)...)
	for _, dir := range []string{c.Run(), c.Data()} {
		if dir == c.Data() && !c.Kept() && KeysOfOthers(c) != "" {
			continue // What an earlier one left on purpose.
		}
		if _, err := os.Stat(dir); err == nil {
			out = append(out, dir)
		}
	}
	if found, err := filepath.Glob("/sys/fs/cgroup/*/" + c.Cgroup()); err == nil {
		out = append(out, found...)
	}
	return out
}

func askShutdown(ctx context.Context, c cluster.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return askAgent(ctx, c, http.MethodPost, "/v1/shutdown")
}

// askAgent has the agent answer, whatever it says.
func askAgent(ctx context.Context, c cluster.Cluster, method, path string) error {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", c.AgentSocket())
	}}
	request, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}
