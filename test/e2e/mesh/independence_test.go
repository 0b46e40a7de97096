//go:build e2e

package mesh

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

const lonelyWorkload = `apiVersion: v1
kind: Service
metadata: { name: lonely, namespace: pinnacle }
spec: { selector: { app: lonely }, ports: [{ name: http, port: 80, targetPort: 8080 }] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: lonely, namespace: pinnacle, labels: { app: lonely } }
spec:
  command: [boutique, frontend]
  env: [%s]
  ports: [{ name: http, port: 8080 }]
  readiness: { http: { port: 8080, path: /healthz } }
`

// Everything of the primary's control is dead: the member serves, renews certificates, starts workloads and takes
// changes; so does, afterwards, the primary without the link. Then both agree without a human.
func TestMemberGoesOnWithoutThePrimary(t *testing.T) {
	near, _ := withFarShop(t)
	state, err := primary.Agent()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { primary.Must(t, "up", "--name", string(primary)) })
	l := harness.StartLoad(t, near, harness.LoadRate)
	// First the agent, which would start another controller.
	for _, pid := range []int{state.PID, state.ControllerPID} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	harness.Eventually(t, 20*time.Second, "the member noticing", func() error {
		if out, err := member.Heddle("cluster", "status"); err == nil {
			return errors.New(out)
		}
		return nil
	})
	goesOnAlone(t, member)
	// The member's own controller starts anew in this state, from what it kept.
	alone, err := member.Agent()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(alone.ControllerPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 30*time.Second, "the member's controller", func() error { _, err := member.Heddle("get", "gns", "boutique"); return err })
	harness.Eventually(t, 10*time.Second, "a purchase without any control of the primary", func() error { order(t, "Alone Street 1"); return nil })
	l.WaitFor(t, harness.LoadRate)
	l.Stop(t)
	primary.Must(t, "up", "--name", string(primary))
	// What the member made meanwhile is found from the primary without a word.
	harness.Eventually(t, 30*time.Second, "both clusters agree", func() error {
		out, err := primary.Heddle("gns", "describe", "boutique")
		if err == nil && !strings.Contains(out, "lonely") {
			err = errors.New(out)
		}
		return err
	})
	checked(t)
}

// goesOnAlone proves that a cluster renews certificates, takes changes and starts workloads.
func goesOnAlone(t *testing.T, c harness.Cluster) {
	t.Helper()
	if err := c.Rotate(); err != nil {
		t.Error(err)
	}
	file := harness.WriteFile(t, fmt.Sprintf(lonelyWorkload, addresses))
	c.Must(t, "apply", "--cluster", string(c), "-f", file)
	t.Cleanup(func() { c.Must(t, "delete", "--cluster", string(c), "-f", file) })
	harness.Eventually(t, 30*time.Second, "a new workload", func() error {
		for _, r := range c.Replicas(t) {
			if r.Workload == "lonely" && r.Ready {
				return nil
			}
		}
		return errors.New(c.Must(t, "ps", "-A"))
	})
}

func TestBothGoOnWithoutTheLink(t *testing.T) {
	withFarShop(t)
	port := wanPort(t, member)
	t.Cleanup(func() { _ = exec.Command("ip", "link", "set", port, "up").Run() })
	if out, err := exec.Command("ip", "link", "set", port, "down").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	harness.Eventually(t, 20*time.Second, "the member noticing", func() error {
		if out, err := member.Heddle("cluster", "status"); err == nil {
			return errors.New(out)
		}
		return nil
	})
	goesOnAlone(t, member)
	// A change of the mesh itself, made at the primary meanwhile, arrives later.
	primary.Must(t, "gns", "create", "meanwhile", "--domain", "meanwhile.demo", "--map", "cluster2/default")
	t.Cleanup(func() { primary.Must(t, "gns", "delete", "meanwhile") })
	if _, err := member.Heddle("get", "gns", "meanwhile"); err == nil {
		t.Error("the change arrived over a dead link")
	}
	if out, err := exec.Command("ip", "link", "set", port, "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	harness.Eventually(t, 10*time.Second, "the change on the other side", func() error { _, err := member.Heddle("get", "gns", "meanwhile"); return err })
	harness.Eventually(t, 15*time.Second, "the member's new service on the primary's side", func() error {
		out, err := primary.Heddle("gns", "describe", "boutique")
		if err == nil && !strings.Contains(out, "lonely") {
			err = errors.New(out)
		}
		return err
	})
	checked(t)
}

// What is wrong with a join is said, and leaves nothing behind.
func TestJoinsThatAreRefused(t *testing.T) {
	address, token := newToken(t)
	parts := strings.Split(token, ".")
	with := func(i int, value string) string {
		changed := append([]string{}, parts...)
		changed[i] = value
		return strings.Join(changed, ".")
	}
	flip := func(text string) string {
		if text[0] == 'a' {
			return "b" + text[1:]
		}
		return "a" + text[1:]
	}
	join := func(name, address, token string) (string, error) {
		return harness.Cluster("").Heddle("up", "--name", name, "--isolated", "--join", address, "--token", token)
	}
	expired := harness.JoinCommand.FindStringSubmatch(primary.Must(t, "cluster", "token", "--ttl", "1s"))
	// The controller counts in whole seconds.
	end := time.Now().Add(2 * time.Second)
	if expired == nil {
		t.Fatal("no token")
	}
	for what, c := range map[string]struct {
		name, address, token string
		says                 []string
	}{
		"no token at all":       {"cluster3", address, "nonsense", []string{"token", "hdl1"}},
		"wrong secret":          {"cluster3", address, with(2, flip(parts[2])), []string{"token"}},
		"unknown token":         {"cluster3", address, with(1, flip(parts[1])), []string{"token"}},
		"impostor":              {"cluster3", address, with(3, flip(parts[3])), []string{"root"}},
		"expired":               {"cluster3", address, expired[2], []string{"expired"}},
		"the primary's name":    {string(primary), address, token, []string{}},
		"unreachable":           {"cluster3", "198.18.0.77:15443", token, []string{"198.18.0.77"}},
		"nobody listens there":  {"cluster3", strings.Replace(address, "15443", "15444", 1), token, []string{"15444"}},
		"not an address at all": {"cluster3", "::::", token, []string{"address"}},
	} {
		t.Run(what, func(t *testing.T) {
			if what == "expired" {
				harness.Eventually(t, 5*time.Second, "the token's end", func() error {
					if left := time.Until(end); left > 0 {
						return fmt.Errorf("%v left", left)
					}
					return nil
				})
			}
			out, err := join(c.name, c.address, c.token)
			if err == nil {
				t.Fatalf("it worked:\n%s", out)
			}
			for _, want := range append(c.says, "error:") {
				if !strings.Contains(out, want) {
					t.Errorf("the message does not say %q:\n%s", want, out)
				}
			}
			if c.name == string(primary) {
				return
			}
			for _, dir := range []string{"/run/heddle/", "/var/lib/heddle/"} {
				if _, err := os.Stat(dir + c.name); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is left: %v", dir+c.name, err)
				}
			}
			if names, err := exec.Command("ip", "netns", "list").Output(); err != nil || strings.Contains(string(names), "heddle-"+c.name) {
				t.Errorf("network namespaces: %v\n%s", err, names)
			}
		})
	}
	// None of this used the token up, and none of it disturbed the mesh.
	checked(t)
}

// A third cluster joins with stock Envoys as its gateways; what it runs is found from the member through them, although
// both only know the primary.
func TestStockEnvoyAsGatewayOfAThirdCluster(t *testing.T) {
	envoy := os.Getenv("HEDDLE_TEST_ENVOY")
	const third = harness.Cluster("cluster3")
	address, token := newToken(t)
	t.Cleanup(func() {
		if out, err := primary.Heddle("cluster", "remove", string(third)); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		third.Must(t, "down", "--name", string(third))
		checked(t)
	})
	if out, err := harness.Step("up", "--name", string(third), "--isolated", "--join", address, "--token", token, "--gateway-proxy", envoy); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, g := range third.Gateways(t, "eastwestgateway") {
		if program, err := g.ProxyProgram(); err != nil || !strings.HasSuffix(program, "/envoy") {
			t.Errorf("%s is %s, %v", g.State.Name, program, err)
		}
	}
	const workshop = `apiVersion: heddle.io/v1alpha1
kind: GlobalNamespace
metadata: { name: boutique, labels: { heddle.io/cluster: cluster1 } }
spec:
  domain: acme.demo
  mappings: [{ cluster: "cluster*", namespace: pinnacle }]
---
apiVersion: v1
kind: Service
metadata: { name: farshop, namespace: pinnacle, labels: { heddle.io/cluster: cluster3 } }
spec: { selector: { app: farshop }, ports: [{ name: http, port: 80, targetPort: 8080 }] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: farshop, namespace: pinnacle, labels: { app: farshop, heddle.io/cluster: cluster3 } }
spec:
  command: [boutique, frontend]
  env: [%s]
  ports: [{ name: http, port: 8080 }]
  readiness: { http: { port: 8080, path: /healthz } }
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: frontend-ingress, namespace: pinnacle, labels: { heddle.io/cluster: cluster2 } }
spec:
  hosts: ["*"]
  gateways: [frontend-gateway]
  http:
  - match: [{ uri: { prefix: /far/ } }]
    rewrite: { uri: / }
    route: [{ destination: { host: farshop.pinnacle.svc.cluster.local, port: { number: 80 } } }]
  - route: [{ destination: { host: frontend.pinnacle.svc.cluster.local, port: { number: 80 } } }]
`
	harness.Cluster("").Must(t, "apply", "-f", harness.WriteFile(t, fmt.Sprintf(workshop, addresses)))
	t.Cleanup(func() { harness.Cluster("").Must(t, "apply", "-f", harness.Split) })
	harness.Eventually(t, 60*time.Second, "the third cluster's page through the member's ingress", harness.Works(shop(t)+"/far/static/shop.css"))
	var clusters struct{ Clusters []struct{ Name string } }
	out := member.Must(t, "cluster", "status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &clusters); err != nil || len(clusters.Clusters) != 3 {
		t.Errorf("the member knows %+v, %v", clusters, err)
	}
	bought(t, "heron-lamp")
	// Gone from this machine, but not from the mesh: its name is taken until it is removed there.
	third.Must(t, "down", "--name", string(third))
	address, token = newToken(t)
	if out, err := third.Heddle("up", "--name", string(third), "--isolated", "--join", address, "--token", token); err == nil || !strings.Contains(out, `the mesh has a cluster "cluster3" already`) ||
		!strings.Contains(out, "heddle cluster remove cluster3") {
		t.Errorf("joining under a name that is taken: %v\n%s", err, out)
	}
}

// A cluster that runs already, with a root of its own and traffic, joins: its certificates change their root under load,
// and nothing fails.
func TestRunningClusterJoinsUnderLoad(t *testing.T) {
	const third = harness.Cluster("cluster3")
	joined := false
	t.Cleanup(func() {
		if joined {
			primary.Must(t, "cluster", "remove", string(third))
		}
		third.Must(t, "down", "--name", string(third))
		checked(t)
	})
	if out, err := harness.Step("up", "--name", string(third), "--isolated"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const stall = `apiVersion: v1
kind: Namespace
metadata: { name: market }
---
apiVersion: v1
kind: Service
metadata: { name: stall, namespace: market }
spec: { selector: { app: stall }, ports: [{ name: http, port: 80, targetPort: 8080 }] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: stall, namespace: market, labels: { app: stall } }
spec:
  command: [boutique, frontend]
  env: [%s]
  ports: [{ name: http, port: 8080 }]
  readiness: { http: { port: 8080, path: /healthz } }
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: { name: stall, namespace: market }
spec:
  selector: { istio: ingressgateway }
  servers: [{ port: { number: 80, name: http, protocol: HTTP }, hosts: ["*"] }]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: stall, namespace: market }
spec:
  hosts: ["*"]
  gateways: [stall]
  http: [{ match: [{ uri: { exact: / } }], rewrite: { uri: /healthz }, retries: { attempts: 0 }, route: [{ destination: { host: stall } }] }]
`
	third.Must(t, "apply", "--cluster", string(third), "-f", harness.WriteFile(t, fmt.Sprintf(stall, addresses)))
	page := "http://" + third.Address(t).String() + "/"
	harness.Eventually(t, 60*time.Second, "the third cluster's page", harness.Works(page))
	third.Must(t, "check", "--cluster", string(third))
	l := harness.StartLoad(t, page, harness.LoadRate)
	l.WaitFor(t, 2*harness.LoadRate)
	address, token := newToken(t)
	third.Must(t, "cluster", "join", address, "--token", token)
	joined = true
	l.WaitFor(t, 3*harness.LoadRate)
	l.Stop(t)
	third.Must(t, "check", "--cluster", string(third))
	checked(t)
}
