//go:build e2e

// Package mesh drives two isolated clusters of this machine the way a user does: joined, with one global namespace, the
// boutique split over both.
package mesh

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// The primary runs ad, checkout, currency, email, payment and shipping, the member the rest of the shop.
const (
	primary = harness.Cluster("cluster1")
	member  = harness.Cluster("cluster2")
)

const split = "../../../demo/boutique/two-clusters/"

// TestMain starts both clusters for all tests and takes them down afterwards.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		if harness.Binaries == "" || os.Geteuid() != 0 {
			fmt.Fprintln(os.Stderr, "these tests start clusters: run them as root by `make test-e2e`, which sets HEDDLE_E2E_BIN")
			return 1
		}
		defer removeAll()
		if err := startMesh(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			primary.ShowLogs()
			member.ShowLogs()
			return 1
		}
		return m.Run()
	}())
}

func removeAll() {
	for _, c := range []harness.Cluster{member, primary} {
		if out, err := c.Heddle("down", "--name", string(c)); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		}
	}
}

var joinCommand = regexp.MustCompile(`--join (\S+) --token (hdl1\.\S+)`)

// step runs one command, and shows it with its time.
func step(c harness.Cluster, args ...string) (string, error) {
	started := time.Now()
	out, err := c.Heddle(args...)
	fmt.Fprintf(os.Stderr, "heddle %s (%.1f s)\n%s", strings.Join(args, " "), time.Since(started).Seconds(), out)
	return out, err
}

// startMesh starts both clusters, joins them and deploys the shop.
func startMesh() error {
	removeAll() // What a run that was killed left behind.
	out, err := step("", "up", "--name", string(primary), "--isolated")
	if err != nil {
		return err
	}
	join := joinCommand.FindStringSubmatch(out)
	if join == nil {
		return errors.New("up printed no join command")
	}
	for _, args := range [][]string{
		{"up", "--name", string(member), "--isolated", "--join", join[1], "--token", join[2]},
		{"gns", "create", "boutique", "--domain", "acme.demo", "--map", "cluster1/pinnacle", "--map", "cluster2/pinnacle", "--cluster", string(primary)},
		{"apply", "-f", split},
		{"check", "--wait", "90s"},
	} {
		if _, err := step("", args...); err != nil {
			return err
		}
	}
	return nil
}

// wan is the address of a cluster on the network that joins the clusters.
func wan(t *testing.T, c harness.Cluster) string {
	t.Helper()
	var status struct{ Advertise string }
	out := c.Must(t, "cluster", "status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &status); err != nil || status.Advertise == "" {
		t.Fatalf("no advertised address of %s (%v) in\n%s", c, err, out)
	}
	host, _, found := strings.Cut(status.Advertise, ":")
	if !found {
		host = status.Advertise
	}
	return host
}

// shop is the boutique's address: the member's ingress.
func shop(t *testing.T) string {
	t.Helper()
	return "http://" + wan(t, member)
}

// inside runs a command in a cluster's own network namespace.
func inside(c harness.Cluster, argv ...string) (string, error) {
	out, err := exec.Command("ip", append([]string{"netns", "exec", "heddle-" + string(c)}, argv...)...).CombinedOutput()
	return string(out), err
}

// checked waits until `heddle check` finds nothing wrong in either cluster.
func checked(t *testing.T) {
	t.Helper()
	primary.Must(t, "check", "--wait", "60s")
	member.Must(t, "check", "--wait", "60s")
}

// agentState is an agent's own account.
type agentState struct {
	PID           int `json:"pid"`
	ControllerPID int `json:"controllerPid"`
}

func askAgent(c harness.Cluster) (agentState, error) {
	var s agentState
	out, err := exec.Command("curl", "-sS", "--fail", "--max-time", "5", "--unix-socket", "/run/heddle/"+string(c)+"/agent.sock", "http://agent/v1/status").CombinedOutput()
	if err != nil {
		return s, fmt.Errorf("ask agent of %s: %w: %s", c, err, out)
	}
	return s, json.Unmarshal(out, &s)
}
