// Package cluster measures sidecars as users have them: a cluster that the command line starts, and in it a namespace for each way
// between a client and its server, of manifests that are applied. Sidecars are started by the agent and configured by the controller,
// stock Envoys too.
package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/control/agent/bypass"
	agentprocess "heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
)

// name of the cluster. What has it is removed before a run and after it, and nothing else is touched.
const name = "bench-p3"

// Cluster is one that runs.
type Cluster struct {
	place  cluster.Cluster
	groups string
	// Programs, by their paths.
	command, proxy, envoy string
}

// Open starts a cluster with the bypass of TCP, after it has removed what a run that was killed has left. ctx ends the start.
func Open(ctx context.Context, binaries peers.Binaries) (*Cluster, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a cluster needs root")
	}
	place, err := cluster.New(name)
	if err != nil {
		return nil, err
	}
	c := &Cluster{place: place}
	for _, program := range []struct {
		into *string
		name string
	}{{&c.command, binaries.Command}, {&c.proxy, binaries.Heddle}, {&c.envoy, binaries.Envoy}} {
		// The agent has another working directory.
		if *program.into, err = found(program.name); err != nil {
			return nil, err
		}
	}
	hierarchies, err := agentprocess.Hierarchy()
	if err != nil {
		return nil, err
	}
	if hierarchies.V2 == "" {
		return nil, agentprocess.ErrNoVersion2
	}
	c.groups = filepath.Join(hierarchies.V2, place.Cgroup())
	if err := c.Close(); err != nil {
		return nil, fmt.Errorf("remove what a run before has left: %w", err)
	}
	if _, err := c.heddle(ctx, nil, "up", "--name", name, "--tcp-bypass", "--proxy", c.proxy); err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("%w\nwhere another cluster has the addresses: unshare -n sh -c 'ip link set lo up; make bench S=p3'", err)
		}
		return nil, errors.Join(err, c.Close())
	}
	status, err := c.bypass(ctx)
	if err == nil && (!status.Attached || status.Problem != "") {
		err = fmt.Errorf("the bypass of TCP is not attached: %s", status.Problem)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close removes the cluster with all that it has on this machine. One that is not there is no error.
func (c *Cluster) Close() error {
	_, err := c.heddle(context.Background(), nil, "down", "--name", name)
	return err
}

// found gives the absolute path of a program.
func found(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("find a program: %w", err)
	}
	return filepath.Abs(path)
}

// heddle runs the command line and gives its standard output.
func (c *Cluster) heddle(ctx context.Context, input []byte, arguments ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, c.command, arguments...)
	// Variables of the caller's shell name other clusters, which are none of this one's business.
	command.Env = append(os.Environ(), "HEDDLE_CONTEXT=", "HEDDLE_CLUSTER="+name)
	var out, problems bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(input), &out, &problems
	if err := command.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("heddle %s: %w\n%s%s", strings.Join(arguments, " "), err, &out, &problems)
	}
	return out.Bytes(), nil
}

// get runs the command line and decodes the JSON that it prints.
func (c *Cluster) get(ctx context.Context, into any, arguments ...string) error {
	out, err := c.heddle(ctx, nil, append(arguments, "-o", "json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("heddle %s: %w", strings.Join(arguments, " "), err)
	}
	return nil
}

func (c *Cluster) bypass(ctx context.Context) (s bypass.Status, err error) {
	return s, c.get(ctx, &s, "bypass", "status")
}
