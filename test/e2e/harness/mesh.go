//go:build e2e

package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Split is the folder of the boutique's manifests for two clusters, from the folder of a test package.
const Split = "../../../demo/boutique/two-clusters/"

// Mesh is two isolated clusters, joined, with one global namespace and the boutique split over both: the primary runs
// ad, checkout, currency, email, payment and shipping, the member the rest.
type Mesh struct {
	Primary, Member Cluster
	// Up are further arguments of `up` for both.
	Up []string
}

// Run starts the mesh, runs the tests and takes it down; it returns the exit code.
func (m Mesh) Run(tests *testing.M) int {
	if Binaries == "" || os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests start clusters: run them as root by `make test-e2e`, which sets HEDDLE_E2E_BIN")
		return 1
	}
	defer m.down()
	if err := m.start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		m.Primary.ShowLogs()
		m.Member.ShowLogs()
		return 1
	}
	return tests.Run()
}

func (m Mesh) down() {
	for _, c := range []Cluster{m.Member, m.Primary} {
		if out, err := c.Heddle("down", "--name", string(c)); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		}
	}
}

// JoinCommand finds address and token in what `up` and `cluster token` print.
var JoinCommand = regexp.MustCompile(`--join (\S+) --token (hdl1\.\S+)`)

// Step runs one command, and shows it with its time.
func Step(args ...string) (string, error) {
	started := time.Now()
	out, err := Cluster("").Heddle(args...)
	fmt.Fprintf(os.Stderr, "heddle %s (%.1f s)\n%s", strings.Join(args, " "), time.Since(started).Seconds(), out)
	return out, err
}

func (m Mesh) start() error {
	m.down() // What a run that was killed left behind.
	out, err := Step(append([]string{"up", "--name", string(m.Primary), "--isolated"}, m.Up...)...)
	if err != nil {
		return err
	}
	join := JoinCommand.FindStringSubmatch(out)
	if join == nil {
		return errors.New("up printed no join command")
	}
	for _, args := range [][]string{
		append([]string{"up", "--name", string(m.Member), "--isolated", "--join", join[1], "--token", join[2]}, m.Up...),
		{"gns", "create", "boutique", "--domain", "acme.demo", "--map", "cluster1/pinnacle", "--map", "cluster2/pinnacle", "--cluster", string(m.Primary)},
		{"apply", "-f", Split},
		{"check", "--wait", "90s"},
	} {
		if _, err := Step(args...); err != nil {
			return err
		}
	}
	return nil
}

// Address is a cluster's on the network that joins the clusters.
func (c Cluster) Address(t *testing.T) netip.Addr {
	t.Helper()
	var status struct{ Advertise string }
	// It fails when anything is wrong with the mesh, and says all the same.
	out, statusErr := c.Heddle("cluster", "status", "-o", "json")
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&status); err != nil {
		t.Fatalf("%v, %v in\n%s", statusErr, err, out)
	}
	if a, err := netip.ParseAddrPort(status.Advertise); err == nil {
		return a.Addr()
	}
	a, err := netip.ParseAddr(status.Advertise)
	if err != nil {
		t.Fatalf("advertised address of %s: %v in\n%s", c, err, out)
	}
	return a
}

// Shop is the boutique's address: the member's ingress.
func (m Mesh) Shop(t *testing.T) string {
	t.Helper()
	return "http://" + strings.TrimSuffix(net.JoinHostPort(m.Member.Address(t).String(), "80"), ":80")
}

// Inside runs a command in an isolated cluster's own network namespace.
func (c Cluster) Inside(argv ...string) (string, error) {
	out, err := exec.Command("ip", append([]string{"netns", "exec", "heddle-" + string(c)}, argv...)...).CombinedOutput()
	return string(out), err
}

// Checked waits until `heddle check` finds nothing wrong in either cluster.
func (m Mesh) Checked(t *testing.T) {
	t.Helper()
	m.Primary.Must(t, "check")
	m.Member.Must(t, "check")
}

// AgentState is an agent's own account.
type AgentState struct {
	PID           int `json:"pid"`
	ControllerPID int `json:"controllerPid"`
}

// Agent asks the cluster's agent for its own account.
func (c Cluster) Agent() (AgentState, error) {
	var s AgentState
	out, err := c.askAgent("GET", "status", nil)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(out, &s)
}

// Rotate has the cluster's agent renew every certificate now.
func (c Cluster) Rotate() error {
	_, err := c.askAgent("POST", "rotate", nil)
	return err
}

// Handshake meets a server from a replica's network with the certificate that the replica has, and waits for the
// server's verdict on it. An error says that there was no handshake or that the server refused the certificate.
func (c Cluster) Handshake(r Replica, address, serverName string) error {
	_, err := c.askAgent("POST", "replicas/"+r.Namespace+"/"+r.State.Name+"/handshake", map[string]string{"address": address, "serverName": serverName})
	return err
}

// Call is how a call ended that a replica made as its application would.
type Call struct{ Did, Answer, Identity, Flags string }

// Call has a replica call a port of a service by HTTP, through its own proxy.
func (c Cluster) Call(r Replica, host string, port int, path string) (Call, error) {
	var call Call
	out, err := c.askAgent("POST", "replicas/"+r.Namespace+"/"+r.State.Name+"/call", map[string]any{"host": host, "port": port, "protocol": "HTTP", "path": path})
	if err != nil {
		return call, err
	}
	return call, json.Unmarshal(out, &call)
}

func (c Cluster) askAgent(method, path string, body any) ([]byte, error) {
	args := []string{"-sS", "--fail-with-body", "--max-time", "30", "-X", method, "--unix-socket", "/run/heddle/" + string(c) + "/agent.sock", "http://agent/v1/" + path}
	if body != nil {
		content, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		args = append(args, "--data-binary", string(content))
	}
	out, err := exec.Command("curl", args...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("ask agent of %s: %w: %s", c, err, out)
	}
	return out, nil
}
