//go:build e2e

package harness

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ShopSpace is the namespace of the boutique.
const ShopSpace = "pinnacle"

// Binaries is the folder of heddle, heddle-proxy and boutique.
var Binaries = os.Getenv("HEDDLE_E2E_BIN")

// Cluster is a running cluster, driven the way a user does: by the command line.
type Cluster string

// Heddle runs the command line against the cluster and returns what it printed.
func (c Cluster) Heddle(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(Binaries, "heddle"), args...)
	cmd.Env = os.Environ()
	if c != "" {
		cmd.Env = append(cmd.Env, "HEDDLE_CLUSTER="+string(c))
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("heddle %s: %w\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String(), err
}

// Must is Heddle for steps that have to succeed.
func (c Cluster) Must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.Heddle(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Apply writes manifests and takes them back when the test ends.
func (c Cluster) Apply(t *testing.T, manifest string) {
	t.Helper()
	file := WriteFile(t, manifest)
	c.Must(t, "apply", "-f", file)
	t.Cleanup(func() {
		if out, err := c.Heddle("delete", "-f", file); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// Replica is a running copy of a workload, as `heddle ps -o json` prints it.
type Replica struct {
	Namespace, Workload string
	Gateway             bool
	Labels              map[string]string
	Ready               bool
	CertificateExpires  time.Time
	State               struct {
		Name, Phase, Address string
		PID                  int `json:"pid"`
		ProxyPID             int `json:"proxyPid"`
		Restarts             int
	}
}

// Replicas lists what runs in the cluster.
func (c Cluster) Replicas(t *testing.T) []Replica {
	t.Helper()
	var all []Replica
	out := c.Must(t, "ps", "-A", "-o", "json")
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	return all
}

// ReplicaOf returns the first replica of a workload of the shop. It waits for one: what was applied a moment ago may not have begun.
func (c Cluster) ReplicaOf(t *testing.T, workload string) Replica {
	t.Helper()
	var found Replica
	Eventually(t, 10*time.Second, "workload "+workload+" has a replica in "+string(c), func() error {
		for _, r := range c.Replicas(t) {
			if r.Namespace == ShopSpace && r.Workload == workload {
				found = r
				return nil
			}
		}
		return errors.New(c.Must(t, "ps", "-A"))
	})
	return found
}

// Gateways returns the gateways of a kind: "ingressgateway" or "eastwestgateway".
func (c Cluster) Gateways(t *testing.T, kind string) []Replica {
	t.Helper()
	var found []Replica
	for _, r := range c.Replicas(t) {
		if r.Gateway && r.Labels["istio"] == kind {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		t.Fatalf("no %s runs in %s:\n%s", kind, c, c.Must(t, "ps", "-A"))
	}
	return found
}

// SetProxy has a workload of the shop run behind another proxy program, one that takes a stock Envoy's arguments.
func (c Cluster) SetProxy(t *testing.T, workload, program string) {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(c.Must(t, "get", "workload", workload, "-n", ShopSpace, "-o", "json")), &object); err != nil {
		t.Fatal(err)
	}
	was, ok := object["metadata"].(map[string]any)
	if !ok {
		t.Fatalf("a workload without metadata: %v", object)
	}
	metadata := map[string]any{"name": workload, "namespace": ShopSpace, "labels": was["labels"], "annotations": map[string]string{"heddle.io/proxy-path": program}}
	manifest, err := json.Marshal(map[string]any{"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": metadata, "spec": object["spec"]})
	if err != nil {
		t.Fatal(err)
	}
	c.Must(t, "apply", "-f", WriteFile(t, string(manifest)))
}

// ShowLogs prints the ends of the cluster's own logs.
func (c Cluster) ShowLogs() {
	for _, component := range []string{"--controller", "--agent"} {
		out, err := c.Heddle("logs", component, "--tail", "30")
		fmt.Fprintf(os.Stderr, "%s %s\n%s", c, component, out)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// WriteFile makes a manifest file.
func WriteFile(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// InNetwork runs a command in the network namespace of a replica.
func (r Replica) InNetwork(argv ...string) (string, error) {
	pid := r.State.PID
	if r.Gateway {
		pid = r.State.ProxyPID
	}
	out, err := exec.Command("nsenter", append([]string{"-t", fmt.Sprint(pid), "-n"}, argv...)...).CombinedOutput()
	return string(out), err
}

// ProxyStats reads the metrics of the replica's proxy.
func (r Replica) ProxyStats(t *testing.T) string {
	t.Helper()
	out, err := r.InNetwork("curl", "-sS", "--max-time", "5", "http://127.0.0.1:15000/stats/prometheus")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return out
}

// OnlyLines keeps the lines that start with a prefix.
func OnlyLines(text, prefix string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			out.WriteString(line)
		}
	}
	return out.String()
}

// Fetch asks once, on a connection of its own, and returns status and body.
func Fetch(url string) (int, string, error) {
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

// Works is a condition for [Eventually]: the page answers with 200.
func Works(url string) func() error {
	return func() error {
		status, body, err := Fetch(url)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d: %.200s", status, body)
		}
		return err
	}
}
