//go:build e2e

// Package e2e drives the built binaries the way a user does: one cluster in network namespaces of this machine, the
// boutique in it, a browser in front.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/store/etcd/etcdtest"
	"heddle.io/heddle/test/e2e/harness"
)

const clusterName = "e2e"

// secretsKeys is the file with the keys of Secrets, outside of the cluster's data.
const secretsKeys = "/opt/heddle-e2e-keys/secrets.key"

// TestMain starts one cluster with the boutique for all tests and takes it down afterwards.
func TestMain(m *testing.M) {
	if os.Getenv(attackEnvironment) != "" {
		attack()
		return
	}
	if etcdtest.RunMember() {
		return
	}
	os.Exit(func() int {
		if harness.Binaries == "" || os.Geteuid() != 0 {
			fmt.Fprintln(os.Stderr, "these tests start a cluster: run them as root by `make test-e2e`, which sets HEDDLE_E2E_BIN")
			return 1
		}
		defer func() {
			if out, err := heddle("down", "--name", clusterName); err != nil {
				fmt.Fprintf(os.Stderr, "heddle down: %v\n%s", err, out)
			}
			if err := os.RemoveAll(filepath.Dir(secretsKeys)); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		if err := startShop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			here.ShowLogs()
			return 1
		}
		return m.Run()
	}())
}

// startShop starts the cluster with the boutique, and waits until all of it works.
func startShop() error {
	for _, step := range [][]string{
		{"down", "--name", clusterName}, // What a run that was killed left behind.
		{"up", "--name", clusterName, "--secrets-key-file", secretsKeys},
		{"apply", "-f", "../../demo/boutique/manifests/"},
		{"check", "--wait", "90s"},
	} {
		started := time.Now()
		out, err := heddle(step...)
		fmt.Fprintf(os.Stderr, "heddle %s (%.1f s)\n%s", strings.Join(step, " "), time.Since(started).Seconds(), out)
		if err != nil {
			return err
		}
	}
	return nil
}

// here is the cluster that most tests share.
const here = harness.Cluster(clusterName)

func heddle(args ...string) (string, error) { return here.Heddle(args...) }

func must(t *testing.T, args ...string) string {
	t.Helper()
	return here.Must(t, args...)
}

func apply(t *testing.T, manifest string) {
	t.Helper()
	here.Apply(t, manifest)
}

// gateway returns the ingress gateway.
func gateway(t *testing.T) harness.Replica {
	t.Helper()
	return here.Gateways(t, "ingressgateway")[0]
}

// shop is the boutique's address.
func shop(t *testing.T) string {
	t.Helper()
	return "http://" + gateway(t).State.Address
}

// bridge is the interface that joins the workloads.
const bridge = "heddle-" + clusterName

// hostAddress is this host's own address on the bridge: the client of the gateway.
const hostAddress = "10.244.0.1"

// controllerPID is the process that `up` started under the agent.
func controllerPID(t *testing.T) int {
	t.Helper()
	out, err := exec.Command("pgrep", "-f", "heddle controller run --name "+clusterName).Output()
	if err != nil {
		t.Fatalf("no controller runs: %v", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatalf("pgrep: %v", err)
	}
	return pid
}
