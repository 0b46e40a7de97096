//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/test/e2e/harness"
)

// listenIn listens inside the network namespace of a process.
func listenIn(t *testing.T, pid int, address string) net.Listener {
	t.Helper()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	other, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	runtime.LockOSThread()
	if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", address)
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		t.Fatal(back) // The thread stays locked, and ends with the goroutine.
	}
	runtime.UnlockOSThread()
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// outside is a server that is no part of the mesh; it answers with a word and the host that it was asked for.
func outside(t *testing.T, listener net.Listener, word string, secure bool) uint16 {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, word, " ", r.Host) }))
	s.Listener.Close()
	s.Listener = listener
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	at, err := netip.ParseAddrPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return at.Port()
}

func onHost(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", hostAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// lookup asks the mesh's DNS from inside a replica.
func lookup(r harness.Replica, host string) (string, error) {
	out, err := r.InNetwork("curl", "-sS", "--max-time", "5", "--unix-socket", "/run/heddle/"+clusterName+"/agent.sock",
		fmt.Sprintf("http://agent/v1/replicas/%s/%s/resolve?name=%s", r.Namespace, r.State.Name, host))
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	var found []netip.Addr
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return "", fmt.Errorf("%w in %s", err, out)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("no address: %s", out)
	}
	return found[0].String(), nil
}

// fetches asks for a URL from inside a replica, as its application would, with the host's name looked up in the mesh's DNS.
func fetches(r harness.Replica, host, url string) (string, error) {
	address, err := lookup(r, host)
	if err != nil {
		return "", err
	}
	return r.InNetwork("curl", "-sSk", "--fail", "--max-time", "5", "--connect-to", "::"+address+":", url)
}

func answers(t *testing.T, r harness.Replica, host, url, want string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(here.Must(t, "logs", r.State.Name, "-n", r.Namespace, "--proxy", "--tail", "5"))
		}
	}()
	harness.Eventually(t, 20*time.Second, url+" answers "+want, func() error {
		got, err := fetches(r, host, url)
		if err != nil {
			return fmt.Errorf("%w: %s", err, got)
		}
		if got != want {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

// External servers are reached by names that the mesh's DNS answers for, by addresses and by DNS, with the application's TLS
// and with the proxy's; and nothing else is, once only what is known may be called.
func TestExternalServices(t *testing.T) {
	shop(t)
	caller := here.ReplicaOf(t, "frontend")
	static, sealed := outside(t, onHost(t), "static", false), outside(t, onHost(t), "sealed", true)
	// A name that needs no server to be looked up: the caller's own host.
	local := outside(t, listenIn(t, caller.State.PID, "127.0.0.1:0"), "named", false)
	unknown := outside(t, onHost(t), "unknown", false)
	apply(t, fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: { name: static, namespace: pinnacle }
spec:
  hosts: [static.example.com]
  resolution: STATIC
  location: MESH_EXTERNAL
  ports:
  - { number: 80, name: http, protocol: HTTP, targetPort: %[1]d }
  - { number: 443, name: https, protocol: HTTPS, targetPort: %[2]d }
  endpoints: [{ address: %[4]s }]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: { name: originated, namespace: pinnacle }
spec:
  hosts: [originated.example.com]
  resolution: STATIC
  ports: [{ number: 80, name: http, protocol: HTTP, targetPort: %[2]d }]
  endpoints: [{ address: %[4]s }]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: { name: originated, namespace: pinnacle }
spec:
  host: originated.example.com
  trafficPolicy: { tls: { mode: SIMPLE, insecureSkipVerify: true } }
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: { name: named, namespace: pinnacle }
spec:
  hosts: [named.example.com]
  resolution: DNS
  ports: [{ number: 80, name: http, protocol: HTTP, targetPort: %[3]d }]
  endpoints: [{ address: localhost }]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: named, namespace: pinnacle }
spec:
  hosts: [named.example.com]
  http:
  - match: [{ uri: { prefix: /gone } }]
    directResponse: { status: 410 }
  - route: [{ destination: { host: named.example.com } }]
`, static, sealed, local, hostAddress))
	answers(t, caller, "static.example.com", "http://static.example.com/", "static static.example.com")
	answers(t, caller, "static.example.com", "https://static.example.com/", "sealed static.example.com")
	answers(t, caller, "originated.example.com", "http://originated.example.com/", "sealed originated.example.com")
	answers(t, caller, "named.example.com", "http://named.example.com/", "named named.example.com")
	if got, err := fetches(caller, "named.example.com", "http://named.example.com/gone"); err == nil || !strings.Contains(got, "410") {
		t.Errorf("a route for the external host answers %q: %v", got, err)
	}

	direct := fmt.Sprintf("http://%s:%d/", hostAddress, unknown)
	ask := func() (string, error) { return caller.InNetwork("curl", "-sS", "--fail", "--max-time", "5", direct) }
	if got, err := ask(); err != nil {
		t.Errorf("an unknown host, which may be called as long as nothing is said: %v: %s", err, got)
	}
	apply(t, `apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: { name: only-known, namespace: pinnacle }
spec: { outboundTrafficPolicy: { mode: REGISTRY_ONLY } }
`)
	harness.Eventually(t, 20*time.Second, "an unknown host is refused", func() error {
		if got, err := ask(); err == nil {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	answers(t, caller, "static.example.com", "http://static.example.com/", "static static.example.com")
}

// A WorkloadEntry is an endpoint of a service of the mesh.
func TestWorkloadEntryIsAnEndpoint(t *testing.T) {
	shop(t)
	caller := here.ReplicaOf(t, "frontend")
	machine := outside(t, onHost(t), "machine", false)
	apply(t, fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: { name: machines, namespace: pinnacle }
spec: { selector: { app: machines }, ports: [{ name: http, port: 80 }] }
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: { name: machine-1, namespace: pinnacle }
spec: { address: %s, labels: { app: machines }, ports: { http: %d } }
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: { name: machines, namespace: pinnacle }
spec: { host: machines.pinnacle.svc.cluster.local, trafficPolicy: { tls: { mode: DISABLE } } }
`, hostAddress, machine))
	answers(t, caller, "machines.pinnacle.svc.cluster.local", "http://machines.pinnacle.svc.cluster.local/", "machine machines.pinnacle.svc.cluster.local")
}

// A Sidecar keeps out of a proxy what its workload does not call: out of its configuration, and out of its memory.
func TestSidecarLimitsWhatAProxyHas(t *testing.T) {
	shop(t)
	limited, other := here.ReplicaOf(t, "adservice"), here.ReplicaOf(t, "currencyservice")
	apply(t, `apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: { name: adservice, namespace: pinnacle }
spec:
  workloadSelector: { labels: { app: adservice } }
  egress: [{ hosts: ["./cartservice.pinnacle.svc.cluster.local"] }]
`)
	clusters := func(r harness.Replica) (string, error) {
		return r.InNetwork("curl", "-sS", "--max-time", "10", "http://127.0.0.1:15000/clusters")
	}
	harness.Eventually(t, 20*time.Second, "the proxy has what its workload may call, and nothing else", func() error {
		out, err := clusters(limited)
		if err != nil {
			return err
		}
		if !strings.Contains(out, "||cartservice.") || strings.Contains(out, "||currencyservice.") {
			return errors.New(harness.OnlyLines(out, "outbound"))
		}
		return nil
	})
	before := [2]int{residentMiB(t, program(t, limited.State.ProxyPID)), residentMiB(t, program(t, other.State.ProxyPID))}
	const many = 1500
	var manifest strings.Builder
	manifest.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: { name: many }\n")
	for i := range many {
		fmt.Fprintf(&manifest, "---\napiVersion: v1\nkind: Service\nmetadata: { name: s-%d, namespace: many }\nspec: { selector: { app: s }, ports: [{ name: http, port: 80 }] }\n", i)
	}
	apply(t, manifest.String())
	harness.Eventually(t, time.Minute, "another proxy has them", func() error {
		out, err := clusters(other)
		if err != nil {
			return err
		}
		if !strings.Contains(out, fmt.Sprintf("||s-%d.many.", many-1)) {
			return errors.New("not yet")
		}
		return nil
	})
	if out, err := clusters(limited); err != nil || strings.Contains(out, ".many.") {
		t.Errorf("the limited proxy has them too: %v", err)
	}
	grown := [2]int{residentMiB(t, program(t, limited.State.ProxyPID)) - before[0], residentMiB(t, program(t, other.State.ProxyPID)) - before[1]}
	t.Logf("%d services more: the limited proxy grows by %d MiB, another one by %d MiB", many, grown[0], grown[1])
	if grown[0] > 2 || grown[1] < 2*max(grown[0], 1) {
		t.Errorf("the limited proxy grew by %d MiB, the other by %d MiB", grown[0], grown[1])
	}
}

// The replicas of an agent that says nothing any more get no traffic, and those of the others do.
func TestAgentFallsSilent(t *testing.T) {
	shop(t)
	caller := here.ReplicaOf(t, "frontend")
	apply(t, `apiVersion: v1
kind: Service
metadata: { name: far, namespace: pinnacle }
spec: { selector: { app: far }, ports: [{ name: http, port: 80, targetPort: 8080 }] }
`)
	far := client.Replica{
		Namespace: harness.ShopSpace, Workload: "far", ServiceAccount: "default", Labels: map[string]string{"app": "far"}, Ready: true,
		State: objects.ReplicaState{Name: "far-0", Address: "10.244.255.7"},
	}
	report := func(replicas ...client.Replica) error {
		body, err := json.Marshal(client.Report{Agent: "another-host", Replicas: replicas})
		if err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(context.Background(), http.MethodPut, "http://heddle/heddle/v1/report", strings.NewReader(string(body)))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json")
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", "/run/heddle/"+clusterName+"/api.sock")
		}}
		defer transport.CloseIdleConnections()
		answer, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode/100 != 2 {
			return errors.New(answer.Status)
		}
		return nil
	}
	has := func() (bool, error) {
		out, err := caller.InNetwork("curl", "-sS", "--max-time", "10", "http://127.0.0.1:15000/clusters")
		return strings.Contains(out, "||far.pinnacle.svc.cluster.local::10.244.255.7:8080"), err
	}
	expect := func(limit time.Duration, want bool, heard bool) time.Duration {
		t.Helper()
		started := time.Now()
		harness.Eventually(t, limit, fmt.Sprintf("the endpoint in rotation: %v", want), func() error {
			if heard {
				if err := report(far); err != nil {
					return err
				}
			}
			if is, err := has(); err != nil || is != want {
				return errors.Join(err, fmt.Errorf("in rotation: %v", is))
			}
			return nil
		})
		return time.Since(started)
	}
	t.Cleanup(func() {
		if t.Failed() {
			here.ShowLogs()
		}
		if err := report(); err != nil {
			t.Error(err)
		}
	})
	if err := report(far); err != nil {
		t.Fatal(err)
	}
	expect(60*time.Second, true, true)
	if took := expect(60*time.Second, false, false); took < 3*time.Second {
		t.Errorf("out of rotation after %s already", took)
	} else {
		t.Logf("out of rotation after %s", took)
	}
	for _, r := range here.Replicas(t) {
		if r.Namespace == harness.ShopSpace && (r.Workload == "far") == r.Ready {
			t.Errorf("%s is shown as ready: %v", r.State.Name, r.Ready)
		}
	}
	expect(10*time.Second, true, true)
}
