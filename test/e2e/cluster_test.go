//go:build e2e

// Package e2e drives the built binaries the way a user does: one cluster in network namespaces of this machine, the
// boutique in it, a browser in front.
package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	clusterName = "e2e"
	shopSpace   = "pinnacle"
)

// binaries is the folder of heddle, heddle-proxy and boutique.
var binaries = os.Getenv("HEDDLE_E2E_BIN")

// TestMain starts one cluster with the boutique for all tests and takes it down afterwards.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		if binaries == "" || os.Geteuid() != 0 {
			fmt.Fprintln(os.Stderr, "these tests start a cluster: run them as root by `make test-e2e`, which sets HEDDLE_E2E_BIN")
			return 1
		}
		defer func() {
			if out, err := heddle("down", "--name", clusterName); err != nil {
				fmt.Fprintf(os.Stderr, "heddle down: %v\n%s", err, out)
			}
		}()
		if err := startShop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			showLogs()
			return 1
		}
		return m.Run()
	}())
}

// startShop starts the cluster with the boutique, and waits until all of it works.
func startShop() error {
	for _, step := range [][]string{
		{"down", "--name", clusterName}, // What a run that was killed left behind.
		{"up", "--name", clusterName},
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

// heddle runs the command line against the tests' cluster and returns what it printed.
func heddle(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(binaries, "heddle"), args...)
	cmd.Env = append(os.Environ(), "HEDDLE_CLUSTER="+clusterName)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("heddle %s: %w\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String(), err
}

// must is heddle for steps that have to succeed.
func must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := heddle(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apply writes manifests and takes them back when the test ends.
func apply(t *testing.T, manifest string) {
	t.Helper()
	file := writeFile(t, manifest)
	must(t, "apply", "-f", file)
	t.Cleanup(func() {
		if out, err := heddle("delete", "-f", file); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// replica is a running copy of a workload, as `heddle ps -o json` prints it.
type replica struct {
	Namespace, Workload string
	Gateway             bool
	CertificateExpires  time.Time
	State               struct {
		Name, Phase, Address string
		PID                  int `json:"pid"`
		ProxyPID             int `json:"proxyPid"`
		Restarts             int
	}
}

func replicas(t *testing.T) []replica {
	t.Helper()
	var all []replica
	out := must(t, "ps", "-o", "json")
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	return all
}

// replicaOf returns the first replica of a workload of the shop.
func replicaOf(t *testing.T, workload string) replica {
	t.Helper()
	for _, r := range replicas(t) {
		if r.Namespace == shopSpace && r.Workload == workload {
			return r
		}
	}
	t.Fatalf("workload %s has no replica:\n%s", workload, must(t, "ps"))
	return replica{}
}

// gateway returns the ingress gateway.
func gateway(t *testing.T) replica {
	t.Helper()
	for _, r := range replicas(t) {
		if r.Gateway {
			return r
		}
	}
	t.Fatalf("no gateway runs:\n%s", must(t, "ps"))
	return replica{}
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

func writeFile(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// inNetwork runs a command in the network namespace of a replica.
func inNetwork(t *testing.T, r replica, argv ...string) (string, error) {
	t.Helper()
	out, err := exec.Command("nsenter", append([]string{"-t", fmt.Sprint(r.State.PID), "-n"}, argv...)...).CombinedOutput()
	return string(out), err
}

// proxyStats reads the metrics of a replica's sidecar.
func proxyStats(t *testing.T, r replica) string {
	t.Helper()
	out, err := inNetwork(t, r, "curl", "-sS", "--max-time", "5", "http://127.0.0.1:15000/stats/prometheus")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return out
}

// fetch asks once and returns status and body.
func fetch(url string) (int, string, error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	var body bytes.Buffer
	_, err = body.ReadFrom(response.Body)
	return response.StatusCode, body.String(), err
}

// shopWorks is a condition for eventually: the catalogue answers.
func shopWorks(url string) func() error {
	return func() error {
		status, body, err := fetch(url)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d: %.200s", status, body)
		}
		return err
	}
}

func showLogs() {
	for _, component := range []string{"--controller", "--agent"} {
		out, err := heddle("logs", component, "--tail", "30")
		fmt.Fprintf(os.Stderr, "%s\n%s", component, out)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}
