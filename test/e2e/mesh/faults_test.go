//go:build e2e

package mesh

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// bound is how long after a fault, and after its end, requests to the other cluster may fail.
const bound = 5 * time.Second

// settled is how long a proxy may take to put into force what its controller shows.
const settled = 500 * time.Millisecond

// inFlight is how long before a fault a request may have been asked that the fault meets on its way.
const inFlight = 500 * time.Millisecond

// Two pages that each cross one hop of the mesh behind the ingress: /static of the member's own frontend, and the same
// page of a workload that runs in the primary only. No retries anywhere, so that every failure shows.
const farShop = `apiVersion: v1
kind: Service
metadata: { name: farshop, namespace: pinnacle, labels: { heddle.io/cluster: cluster1 } }
spec: { selector: { app: farshop }, ports: [{ name: http, port: 80, targetPort: 8080 }] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: farshop, namespace: pinnacle, labels: { app: farshop, heddle.io/cluster: cluster1 } }
spec:
  command: [boutique, frontend]
  env: [{ name: BOUTIQUE_CLUSTER, value: cluster1 }, %s]
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
    retries: { attempts: 0 }
    route: [{ destination: { host: farshop.pinnacle.svc.cluster.local, port: { number: 80 } } }]
  - retries: { attempts: 0 }
    route: [{ destination: { host: frontend.pinnacle.svc.cluster.local, port: { number: 80 } } }]
`

// addresses of the services that a frontend wants to know.
const addresses = `{ name: AD_SERVICE_ADDR, value: "adservice:9555" }, { name: CART_SERVICE_ADDR, value: "cartservice:7070" }, { name: CHECKOUT_SERVICE_ADDR, value: "checkoutservice:5050" },
    { name: CURRENCY_SERVICE_ADDR, value: "currencyservice:7000" }, { name: PRODUCT_CATALOG_SERVICE_ADDR, value: "productcatalogservice:3550" },
    { name: RECOMMENDATION_SERVICE_ADDR, value: "recommendationservice:8080" }, { name: SHIPPING_SERVICE_ADDR, value: "shippingservice:50051" }`

// withFarShop deploys the pages for a test and returns their addresses.
func withFarShop(t *testing.T) (near, far string) {
	t.Helper()
	file := harness.WriteFile(t, fmt.Sprintf(farShop, addresses))
	harness.Cluster("").Must(t, "apply", "-f", file)
	t.Cleanup(func() {
		harness.Cluster("").Must(t, "apply", "-f", harness.Split)
		primary.Must(t, "delete", "service/farshop", "workload/farshop", "-n", harness.ShopSpace)
		checked(t)
	})
	near, far = shop(t)+"/static/shop.css", shop(t)+"/far/static/shop.css"
	harness.Eventually(t, 60*time.Second, "the page of the other cluster", harness.Works(far))
	checked(t)
	return near, far
}

// loads are one on each page. Local requests must never fail.
type loads struct{ near, far *harness.Load }

func startLoads(t *testing.T) loads {
	t.Helper()
	near, far := withFarShop(t)
	l := loads{harness.StartLoad(t, near, harness.LoadRate), harness.StartLoad(t, far, harness.LoadRate)}
	l.settle(t)
	return l
}

// settle lets two more seconds of good traffic pass on both pages.
func (l loads) settle(t *testing.T) {
	t.Helper()
	l.near.WaitFor(t, 2*harness.LoadRate)
	l.far.WaitFor(t, 2*harness.LoadRate)
}

// stop ends both; of the requests to the other cluster, only the allowed ones may have failed, and no others.
func (l loads) stop(t *testing.T, allowed ...harness.Allowance) {
	t.Helper()
	l.near.Stop(t)
	l.far.Stop(t, allowed...)
}

// How a request fails that was on a connection when it broke, one that found no place to go, and one whose service is not
// known any more (Envoy's flag NC).
var (
	unknown = []string{"503 Service Unavailable: without a body"}
	broken  = []string{"reset reason: connection termination", "reset reason: remote reset", "unexpected EOF"}
	nobody  = []string{"no healthy upstream"}
)

// farEndpoints says whether the member's ingress has an endpoint for the page of the other cluster.
func farEndpoints(t *testing.T) bool {
	t.Helper()
	out := member.Must(t, "proxy", "config", "-n", "istio-system", "istio-ingressgateway", "endpoints", "-o", "json")
	return strings.Contains(out, "farshop.pinnacle") && strings.Contains(afterName(out, "farshop.pinnacle"), primary.Address(t).String())
}

// afterName is the part of a text from a name to the next cluster's.
func afterName(text, name string) string {
	_, rest, _ := strings.Cut(text, name)
	part, _, _ := strings.Cut(rest, "clusterName")
	return part
}

func TestPrimaryControllerKilledUnderLoad(t *testing.T) {
	l := startLoads(t)
	for range 2 {
		before, err := primary.Agent()
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(before.ControllerPID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, 30*time.Second, "another controller of the primary", func() error {
			now, err := primary.Agent()
			if err == nil && (now.ControllerPID == 0 || now.ControllerPID == before.ControllerPID) {
				err = errors.New("not yet")
			}
			return err
		})
		l.settle(t)
	}
	// The data path between the clusters does not need the primary's controller.
	l.stop(t)
	checked(t)
}

func TestLinkCutAndHealedUnderLoad(t *testing.T) {
	l := startLoads(t)
	link := func(state string) time.Duration {
		t.Helper()
		port := wanPort(t, primary)
		if out, err := exec.Command("ip", "link", "set", port, state).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return l.far.Elapsed()
	}
	t.Cleanup(func() { _ = exec.Command("ip", "link", "set", wanPort(t, primary), "up").Run() })
	cut := link("down")
	harness.Eventually(t, bound, "the endpoints behind the dead link leave rotation", func() error {
		if farEndpoints(t) {
			return errors.New("still there")
		}
		return nil
	})
	left := l.far.Elapsed()
	t.Logf("endpoints left %.1f s after the cut", (left - cut).Seconds())
	l.near.WaitFor(t, 3*harness.LoadRate)
	healed := link("up")
	harness.Eventually(t, bound, "the endpoints return", func() error {
		if !farEndpoints(t) {
			return errors.New("not there yet")
		}
		return nil
	})
	returned := l.far.Elapsed()
	t.Logf("endpoints returned %.1f s after the link", (returned - healed).Seconds())
	l.near.WaitFor(t, 6*harness.LoadRate)
	l.far.WaitFor(t, 2*harness.LoadRate)
	// Nobody tells a proxy that a link is dead: what waits for an answer or for a connection fails by its time limit, or
	// when the endpoint is taken away. After that there is nowhere to go, at once, until the endpoints are back.
	l.stop(t,
		harness.Allowance{Why: "on the dead link", From: cut - inFlight, To: left + settled, AtMost: harness.Any,
			Like: append([]string{"reset reason: connection timeout", "reset reason: remote connection failure", "upstream request timeout", "no healthy upstream"}, broken...)},
		harness.Allowance{Why: "without endpoints", From: left, To: returned + settled, AtMost: harness.Any, Like: nobody})
	checked(t)
}

// wanPort is the machine's end of a cluster's cable.
func wanPort(t *testing.T, c harness.Cluster) string {
	t.Helper()
	out, err := c.Inside("cat", "/sys/class/net/wan0/iflink")
	if err != nil {
		out, err = c.Inside("sh", "-c", "mount -t sysfs none /mnt && cat /mnt/class/net/wan0/iflink; umount /mnt")
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	links, err := exec.Command("ip", "-o", "link").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(links)) {
		index, rest, _ := strings.Cut(line, ": ")
		if index == strings.TrimSpace(out) {
			name, _, _ := strings.Cut(rest, "@")
			return name
		}
	}
	t.Fatalf("no interface %s in\n%s", out, links)
	return ""
}

func TestOneOfTwoGatewaysKilledUnderLoad(t *testing.T) {
	l := startLoads(t)
	gateways := primary.Gateways(t, "eastwestgateway")
	if len(gateways) != 2 {
		t.Fatalf("%d east-west gateways", len(gateways))
	}
	var allowed []harness.Allowance
	for _, g := range gateways {
		at, connections, refused := l.far.Elapsed(), connectionsOf(t, g), resets(t, g)
		if err := syscall.Kill(g.State.ProxyPID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		var again harness.Replica
		harness.Eventually(t, 30*time.Second, "the gateway's restart", func() error {
			for _, now := range primary.Gateways(t, "eastwestgateway") {
				if now.State.Name != g.State.Name {
					continue
				}
				if now.State.ProxyPID == g.State.ProxyPID || !now.Ready {
					return fmt.Errorf("%+v", now.State)
				}
				again = now
			}
			return nil
		})
		back := l.far.Elapsed()
		// HTTP/1.1 between the sidecars: a connection carries one request at a time. Others may have asked for a connection
		// while nobody listened any more and the other gateway was not yet alone in the rotation: the kernel reset those.
		refused = resets(t, again) - refused
		t.Logf("%s had %d connections, and its kernel sent %d resets", g.State.Name, connections, refused)
		allowed = append(allowed,
			harness.Allowance{Why: "on the connections that " + g.State.Name + " had", From: at - inFlight, To: back + settled, AtMost: connections, Like: broken},
			harness.Allowance{Why: "on those that it refused", From: at, To: back + settled, AtMost: refused, Like: []string{"reset reason: remote connection failure"}})
		l.settle(t)
		l.settle(t)
	}
	l.stop(t, allowed...)
	checked(t)
}

// connectionsOf counts the connections that an east-west gateway has from outside.
func connectionsOf(t *testing.T, g harness.Replica) int {
	t.Helper()
	out, err := g.InNetwork("ss", "-Htn", "state", "established", "sport = :15443")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.Count(out, "\n")
}

// resets counts the TCP resets that the kernel has sent in a gateway's network: Tcp OutRsts of RFC 4022.
func resets(t *testing.T, g harness.Replica) int {
	t.Helper()
	out, err := g.InNetwork("cat", "/proc/net/snmp")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var names []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if fields[0] != "Tcp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name == "OutRsts" {
				n, err := strconv.Atoi(fields[i])
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
	}
	t.Fatalf("no count of resets in\n%s", out)
	return 0
}

func TestIntermediatesRotatedUnderLoad(t *testing.T) {
	l := startLoads(t)
	issuer := func(c harness.Cluster) string {
		t.Helper()
		return c.Must(t, "cluster", "status", "-o", "json")
	}
	for _, c := range []harness.Cluster{member, primary, member} {
		before := issuer(c)
		c.Must(t, "cluster", "rotate")
		harness.Eventually(t, 30*time.Second, "another intermediate of "+string(c), func() error {
			if field(issuer(c), "issuerExpires") == field(before, "issuerExpires") {
				return errors.New("still the old one")
			}
			return nil
		})
		l.settle(t)
	}
	l.stop(t)
	checked(t)
}

// field is the value of a field of pretty-printed JSON.
func field(text, name string) string {
	_, rest, _ := strings.Cut(text, `"`+name+`":`)
	value, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(value)
}

// The member is removed from the mesh and joins again while both pages are asked for: its own services go on.
func TestClusterRemovedAndJoinedAgainUnderLoad(t *testing.T) {
	l := startLoads(t)
	attack := removedMember{caller: member.ReplicaOf(t, "frontend"), gateway: netip.AddrPortFrom(primary.Address(t), 15443).String()}
	// With the same certificate, before: what is refused afterwards is refused for the removal.
	for _, service := range primarysServices {
		if err := attack.meet(service); err != nil {
			t.Fatalf("before the removal: %v", err)
		}
	}
	if call, err := attack.call(); err != nil || call.Answer != "200 OK" {
		t.Fatalf("before the removal: %+v, %v", call, err)
	}
	removed := l.far.Elapsed()
	primary.Must(t, "cluster", "remove", string(member))
	rejoined := false
	t.Cleanup(func() {
		if !rejoined {
			address, token := newToken(t)
			member.Must(t, "cluster", "join", address, "--token", token)
		}
	})
	harness.Eventually(t, 10*time.Second, "the removed cluster's endpoints leave", func() error {
		if farEndpoints(t) {
			return errors.New("still there")
		}
		return nil
	})
	// What the removed cluster has signed opens nothing of the primary's: it still reaches the gateway, by an address that
	// it knows, and the sidecar behind refuses its certificate.
	for _, service := range primarysServices {
		harness.Eventually(t, bound, service+" refuses the removed cluster's certificate", func() error {
			err := attack.meet(service)
			switch {
			case err == nil:
				return errors.New("accepted")
			case !strings.Contains(err.Error(), "refused the certificate") && !strings.Contains(err.Error(), "broke when the server had the certificate"):
				return err
			}
			return nil
		})
	}
	if call, err := attack.call(); err == nil && strings.HasPrefix(call.Answer, "2") {
		t.Errorf("a service of the primary answered the removed cluster: %+v", call)
	}
	// Certificates that it signs from now on are no better.
	if err := member.Rotate(); err != nil {
		t.Errorf("the removed cluster cannot renew its own certificates: %v", err)
	}
	for _, service := range primarysServices {
		if err := attack.meet(service); err == nil {
			t.Errorf("%s accepted a certificate that the removed cluster has just signed", service)
		}
	}
	if out, err := member.Heddle("cluster", "status"); err == nil || !strings.Contains(out, "removed") {
		t.Errorf("the removed cluster says %v:\n%s", err, out)
	}
	l.near.WaitFor(t, 2*harness.LoadRate)
	address, token := newToken(t)
	member.Must(t, "cluster", "join", address, "--token", token)
	rejoined = true
	// The token was used: replayed by anyone else, it opens nothing.
	if out, err := harness.Cluster("").Heddle("up", "--name", "cluster3", "--isolated", "--join", address, "--token", token); err == nil || !strings.Contains(out, "the token was used already") {
		t.Errorf("the replayed token: %v\n%s", err, out)
	}
	harness.Eventually(t, 30*time.Second, "the page of the other cluster", harness.Works(l.far.URL()))
	joined := l.far.Elapsed()
	l.near.WaitFor(t, 6*harness.LoadRate)
	l.far.WaitFor(t, 3*harness.LoadRate)
	l.stop(t, harness.Allowance{Why: "while the cluster is not of the mesh", From: removed - inFlight, To: joined + settled, AtMost: harness.Any,
		Like: slices.Concat(broken, nobody, unknown)})
	for _, service := range primarysServices {
		if err := attack.meet(service); err != nil {
			t.Errorf("after joining again: %v", err)
		}
	}
	checked(t)
	bought(t, "rainy-teapot")
}

// primarysServices run in the primary alone.
var primarysServices = []string{"outbound_.80_._.farshop.pinnacle.svc.cluster.local", "outbound_.5050_._.checkoutservice.pinnacle.svc.cluster.local"}

// removedMember tries what a cluster can that was removed and does not care.
type removedMember struct {
	caller  harness.Replica
	gateway string
}

// meet shakes hands with a service's sidecar through the primary's gateway.
func (m removedMember) meet(service string) error {
	return member.Handshake(m.caller, m.gateway, service)
}

// call asks a service of the primary the usual way, from sidecar to sidecar.
func (m removedMember) call() (harness.Call, error) {
	return member.Call(m.caller, "farshop.pinnacle.svc.cluster.local", 80, "/healthz")
}

// newToken asks the primary for another one.
func newToken(t *testing.T) (address, token string) {
	t.Helper()
	out := primary.Must(t, "cluster", "token")
	join := harness.JoinCommand.FindStringSubmatch(out)
	if join == nil {
		t.Fatalf("no join command in\n%s", out)
	}
	return join[1], join[2]
}

// The same service in both clusters is one: local endpoints first, the others when those are gone, and back.
func TestLocalFirstAndFailover(t *testing.T) {
	withFarShop(t)
	const near = `apiVersion: v1
kind: Service
metadata: { name: farshop, namespace: pinnacle, labels: { heddle.io/cluster: cluster2 } }
spec: { selector: { app: farshop }, ports: [{ name: http, port: 80, targetPort: 8080 }] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: farshop, namespace: pinnacle, labels: { app: farshop, heddle.io/cluster: cluster2 } }
spec:
  command: [boutique, frontend]
  env: [{ name: BOUTIQUE_CLUSTER, value: cluster2 }, %s]
  ports: [{ name: http, port: 8080 }]
  readiness: { http: { port: 8080, path: /healthz } }
`
	file := harness.WriteFile(t, fmt.Sprintf(near, addresses))
	harness.Cluster("").Must(t, "apply", "-f", file)
	t.Cleanup(func() {
		member.Must(t, "delete", "service/farshop", "workload/farshop", "-n", harness.ShopSpace)
	})
	address := shop(t) + "/far/static/shop.css"
	answers := func(want harness.Cluster, times int) func() error {
		return func() error {
			for range times {
				response, err := http.Get(address)
				if err != nil {
					return err
				}
				if err := response.Body.Close(); err != nil {
					return err
				}
				if by := response.Header.Get("x-boutique-served-by"); response.StatusCode != http.StatusOK || !strings.HasSuffix(by, "/"+string(want)) {
					return fmt.Errorf("%s, served by %q instead of %s", response.Status, by, want)
				}
			}
			return nil
		}
	}
	harness.Eventually(t, 30*time.Second, "local endpoints first", answers(member, 20))
	member.Must(t, "stop", "farshop", "-n", harness.ShopSpace)
	harness.Eventually(t, 30*time.Second, "failover to the other cluster", answers(primary, 20))
	member.Must(t, "start", "farshop", "-n", harness.ShopSpace)
	harness.Eventually(t, 30*time.Second, "local endpoints again", answers(member, 20))
}
