//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// mutualTLS is what the shop's servers accept, with what its clients are told by a rule; without a rule they find it out.
const mutualTLS = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: { name: mtls-pinnacle, namespace: pinnacle }
spec: { mtls: { mode: %s } }
`

const mutualTLSRule = `---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: { name: mtls-pinnacle-rule, namespace: pinnacle }
spec:
  host: "*"
  exportTo: ["."]
  trafficPolicy: { tls: { mode: %s } }
`

// bothProxies runs a test with heddle-proxy everywhere, and with a stock Envoy beside a client and a server of the shop's
// pages, so that each calls the other. Every failure shows: nothing is retried.
func bothProxies(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Cleanup(func() {
		must(t, "apply", "-f", "../../demo/boutique/manifests/")
		must(t, "check", "--wait", "90s")
	})
	withoutLimits(t)
	retriesOff(t)
	t.Run("heddle-proxy", test)
	envoy := stockEnvoy(t)
	here.SetProxy(t, "frontend", envoy)
	here.SetProxy(t, "cartservice", envoy)
	must(t, "check", "--wait", "90s")
	t.Run("Envoy", test)
}

// bothGateways runs a test of clusters that it starts with these flags, whose gateways are heddle-proxy's and stock Envoys.
func bothGateways(t *testing.T, test func(t *testing.T, flags []string)) {
	t.Helper()
	envoy := stockEnvoy(t)
	t.Run("heddle-proxy", func(t *testing.T) { test(t, nil) })
	t.Run("Envoy", func(t *testing.T) { test(t, []string{"--gateway-proxy", envoy}) })
}

func stockEnvoy(t *testing.T) string {
	t.Helper()
	envoy := os.Getenv("HEDDLE_TEST_ENVOY")
	if _, err := os.Stat(envoy); err != nil {
		t.Fatalf("HEDDLE_TEST_ENVOY: %v; make test-e2e sets it", err)
	}
	return envoy
}

// ownProxy runs a test with heddle-proxy, and with stock Envoys too if all is asked for: what it is about is the order in
// which the controller sends, which is the same for both.
func ownProxy(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if os.Getenv("HEDDLE_E2E_LONG") != "" {
		bothProxies(t, test)
		return
	}
	t.Cleanup(func() {
		must(t, "apply", "-f", "../../demo/boutique/manifests/")
		must(t, "check", "--wait", "90s")
	})
	withoutLimits(t)
	retriesOff(t)
	test(t)
}

// resources are the bounds of a workload.
var resources = regexp.MustCompile(`(?m)^  resources: .*\n`)

// withoutLimits has the shop's workloads use what the machine has: a queue that builds up while the kernel holds back
// a process says nothing of the mesh.
func withoutLimits(t *testing.T) {
	t.Helper()
	workloads, err := os.ReadFile("../../demo/boutique/manifests/workloads.yaml")
	if err != nil {
		t.Fatal(err)
	}
	must(t, "apply", "-f", harness.WriteFile(t, resources.ReplaceAllString(string(workloads), "")))
	must(t, "check", "--wait", "90s")
}

// change applies a manifest and waits until the proxies run each of the objects, the last step of a change included.
func change(t *testing.T, manifest string, objects ...string) {
	t.Helper()
	must(t, "apply", "-f", harness.WriteFile(t, manifest))
	for _, name := range objects {
		// Servers accept what was before for as long as a connection may take that was begun before.
		harness.Eventually(t, 30*time.Second, name+" is programmed", func() error { return programmed(name) })
	}
}

// programmed says whether the newest form of an object, kind/name, runs everywhere.
func programmed(name string) error {
	kind, object, _ := strings.Cut(name, "/")
	out, err := heddle("get", kind, object, "-n", harness.ShopSpace, "-o", "json")
	if err != nil {
		return err
	}
	var got struct {
		Metadata struct{ Generation int64 }
		Status   struct {
			Conditions []struct {
				Type, Status, Reason, Message string
				ObservedGeneration            int64
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		return err
	}
	for _, c := range got.Status.Conditions {
		if c.Type == "Programmed" && c.Status == "True" && c.ObservedGeneration == got.Metadata.Generation {
			return nil
		}
	}
	return fmt.Errorf("generation %d: %+v", got.Metadata.Generation, got.Status.Conditions)
}

// underLoad asks for the shop's page while step is called with rising numbers, and allows no request to fail.
func underLoad(t *testing.T, steps int, step func(n int)) {
	t.Helper()
	l := harness.StartLoad(t, shop(t)+loadPath, harness.LoadRate)
	l.WaitFor(t, 2*harness.LoadRate)
	for n := range steps {
		t.Logf("step %d begins after %.2f s", n, l.Elapsed().Seconds())
		step(n)
		t.Logf("step %d is over after %.2f s", n, l.Elapsed().Seconds())
		l.WaitFor(t, 2*harness.LoadRate)
	}
	l.Stop(t)
}

func TestMutualTLSSwitchedUnderLoad(t *testing.T) {
	bothProxies(t, func(t *testing.T) {
		modes := []string{"PERMISSIVE", "DISABLE", "PERMISSIVE", "STRICT", "DISABLE", "STRICT"}
		// switched waits for the end of some of the changes; the others are followed by the next while servers still accept
		// what was before.
		switched := func(n int, objects ...string) []string {
			if n == 1 || n == len(modes)-1 {
				return objects
			}
			return nil
		}
		// Each way takes a minute with each proxy: one of each, unless all are asked for.
		all, envoy := os.Getenv("HEDDLE_E2E_LONG") != "", strings.HasSuffix(t.Name(), "/Envoy")
		byRule := func(t *testing.T) {
			underLoad(t, len(modes), func(n int) {
				client := "ISTIO_MUTUAL"
				if modes[n] == "DISABLE" {
					client = "DISABLE"
				}
				change(t, fmt.Sprintf(mutualTLS+mutualTLSRule, modes[n], client), switched(n, "peerauthentication/mtls-pinnacle", "destinationrule/mtls-pinnacle-rule")...)
			})
		}
		byItself := func(t *testing.T) {
			must(t, "delete", "destinationrule", "mtls-pinnacle-rule", "-n", harness.ShopSpace)
			t.Cleanup(func() { must(t, "apply", "-f", "../../demo/boutique/manifests/destinationrule.yaml") })
			underLoad(t, len(modes), func(n int) {
				change(t, fmt.Sprintf(mutualTLS, modes[n]), switched(n, "peerauthentication/mtls-pinnacle")...)
			})
		}
		if all || !envoy {
			t.Run("by a rule", byRule)
		}
		if all || envoy {
			t.Run("by itself", byItself)
		}
	})
}

// The controller is killed at once after each switch, and again a little later: the next one goes on where it was.
func TestControllerKilledWhileMutualTLSIsSwitched(t *testing.T) {
	t.Cleanup(func() {
		must(t, "apply", "-f", "../../demo/boutique/manifests/")
		must(t, "check", "--wait", "90s")
	})
	withoutLimits(t)
	retriesOff(t)
	modes := []string{"DISABLE", "STRICT"}
	underLoad(t, len(modes), func(n int) {
		client := map[string]string{"DISABLE": "DISABLE", "STRICT": "ISTIO_MUTUAL"}[modes[n]]
		change(t, fmt.Sprintf(mutualTLS+mutualTLSRule, modes[n], client))
		for range 2 {
			before := controllerPID(t)
			if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, 30*time.Second, "another controller", func() error {
				_, err := heddle("get", "services", "-n", harness.ShopSpace)
				return err
			})
		}
		for _, name := range []string{"peerauthentication/mtls-pinnacle", "destinationrule/mtls-pinnacle-rule"} {
			harness.Eventually(t, 60*time.Second, name+" is programmed", func() error { return programmed(name) })
		}
	})
}

// twoPorts has the currency service listen on another port as well.
const twoPorts = `apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: currencyservice, namespace: pinnacle, labels: { app: currencyservice } }
spec:
  serviceAccount: currencyservice
  command: [/bin/sh, -c, "PORT=7001 %[1]s currencyservice & exec %[1]s currencyservice"]
  ports: [{ name: grpc, port: 7000, protocol: TCP }, { name: grpc-too, port: 7001, protocol: TCP }]
  readiness: { grpc: { port: 7001 } }
  restart: Always
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: { name: currency-by-path, namespace: pinnacle }
spec:
  selector: { matchLabels: { app: currencyservice } }
  action: ALLOW
  rules: [{ to: [{ operation: { paths: ["/*"] } }] }]
`

const currencyPort = `apiVersion: v1
kind: Service
metadata: { name: currencyservice, namespace: pinnacle, labels: { app: currencyservice } }
spec:
  selector: { app: currencyservice }
  ports: [{ name: grpc, port: 7000, targetPort: %d }]
`

// A port that no service led to before is not read as HTTP, and what a policy says of paths refuses everything there.
func TestPortMovedUnderLoad(t *testing.T) {
	bothProxies(t, func(t *testing.T) {
		must(t, "apply", "-f", harness.WriteFile(t, fmt.Sprintf(twoPorts, filepath.Join(harness.Binaries, "boutique"))))
		t.Cleanup(func() {
			must(t, "delete", "authorizationpolicy", "currency-by-path", "-n", harness.ShopSpace)
			must(t, "apply", "-f", "../../demo/boutique/manifests/services.yaml")
			withoutLimits(t)
		})
		harness.Eventually(t, 30*time.Second, "the currency service on both ports", harness.Works(shop(t)+loadPath))
		must(t, "check", "--wait", "90s")
		underLoad(t, 6, func(n int) {
			// Two changes are followed by the next while servers still accept what was before.
			if manifest := fmt.Sprintf(currencyPort, 7001-n%2); n%3 == 2 {
				change(t, manifest, "service/currencyservice")
			} else {
				change(t, manifest)
			}
		})
	})
}

const subset = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: { name: currency, namespace: pinnacle }
spec:
  host: currencyservice.pinnacle.svc.cluster.local
  exportTo: ["."]
  trafficPolicy: { tls: { mode: ISTIO_MUTUAL } }
  subsets: [{ name: %[1]s, labels: { app: currencyservice } }]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: currencyservice-no-retries, namespace: pinnacle }
spec:
  hosts: [currencyservice.pinnacle.svc.cluster.local]
  http:
  - retries: { attempts: 0 }
    route: [{ destination: { host: currencyservice.pinnacle.svc.cluster.local, subset: %[1]s } }]
`

func TestSubsetRenamedUnderLoad(t *testing.T) {
	ownProxy(t, func(t *testing.T) {
		t.Cleanup(func() {
			must(t, "apply", "-f", harness.WriteFile(t, fmt.Sprintf(noRetries, "currencyservice")))
			must(t, "delete", "destinationrule", "currency", "-n", harness.ShopSpace)
		})
		underLoad(t, 4, func(n int) {
			change(t, fmt.Sprintf(subset, fmt.Sprintf("version-%d", n)), "destinationrule/currency", "virtualservice/currencyservice-no-retries")
		})
	})
}

const destination = `apiVersion: v1
kind: Service
metadata: { name: money-%[1]d, namespace: pinnacle, labels: { app: currencyservice } }
spec:
  selector: { app: currencyservice }
  ports: [{ name: grpc, port: 80%[1]d, targetPort: 7000 }]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: currencyservice-no-retries, namespace: pinnacle }
spec:
  hosts: [currencyservice.pinnacle.svc.cluster.local]
  http:
  - retries: { attempts: 0 }
    route: [{ destination: { host: money-%[1]d.pinnacle.svc.cluster.local, port: { number: 80%[1]d } } }]
`

// Services come with the routes that lead to them, and go when no route does.
func TestDestinationsMovedUnderLoad(t *testing.T) {
	ownProxy(t, func(t *testing.T) {
		const steps = 4
		t.Cleanup(func() {
			must(t, "apply", "-f", harness.WriteFile(t, fmt.Sprintf(noRetries, "currencyservice")))
			must(t, "delete", "service", fmt.Sprintf("money-%d", 10+steps-1), "-n", harness.ShopSpace)
		})
		underLoad(t, steps, func(n int) {
			change(t, fmt.Sprintf(destination, 10+n), "virtualservice/currencyservice-no-retries")
			if n > 0 {
				must(t, "delete", "service", fmt.Sprintf("money-%d", 10+n-1), "-n", harness.ShopSpace)
			}
		})
	})
}
