package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"heddle.io/heddle/control/agent/allocation"
	"heddle.io/heddle/control/cluster"
)

func (r *replica) logs() string { return logsOf(r.agent.config.Cluster, r.spec.key()) }

// MakeLogs makes the directory of a cluster's logs, and closes it to others if it is there: what applications print is read
// through the API, by those who may.
func MakeLogs(c cluster.Cluster) error {
	return errors.Join(os.MkdirAll(c.Logs(), 0o700), os.Chmod(c.Logs(), 0o700))
}

// logsOf is the directory of the logs of a replica, namespace/name-N.
func logsOf(c cluster.Cluster, replica string) string {
	return filepath.Join(c.Logs(), filepath.FromSlash(replica))
}

// removeLogs removes the logs of replicas whose workload was deleted: the namespace may be somebody else's next.
func removeLogs(c cluster.Cluster, replicas ...string) error {
	var errs []error
	for _, replica := range replicas {
		dir := logsOf(c, replica)
		errs = append(errs, os.RemoveAll(dir))
		// The last one takes the namespace's directory along.
		_ = os.Remove(filepath.Dir(dir))
	}
	return errors.Join(errs...)
}

// sweepLogs removes the logs of all workloads but those to keep, where an agent died before it could.
func (a *Agent) sweepLogs(keep func(workload string) bool) error {
	c := a.config.Cluster
	dirs, err := filepath.Glob(filepath.Join(c.Logs(), "*", "*"))
	if err != nil {
		return fmt.Errorf("look for logs: %w", err)
	}
	var gone []string
	for _, dir := range dirs {
		replica := filepath.Base(filepath.Dir(dir)) + "/" + filepath.Base(dir)
		if !keep(allocation.WorkloadOf(replica)) {
			gone = append(gone, replica)
		}
	}
	return removeLogs(c, gone...)
}
