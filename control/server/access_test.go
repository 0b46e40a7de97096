package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// stranger is a user of the machine who was given nothing, bob one who is given roles by his number.
const (
	stranger = 65534
	bob      = 60002
)

// as connects as another user: what the kernel says of the connecting thread is what the server is told. The thread is
// never used again.
func as(uid int) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		type result struct {
			conn net.Conn
			err  error
		}
		out := make(chan result)
		go func() {
			runtime.LockOSThread()
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
				out <- result{nil, errno}
				return
			}
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			out <- result{conn, err}
		}()
		r := <-out
		return r.conn, r.err
	}
}

func (w *world) as(t *testing.T, uid int, token string) *client.Client {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can call as somebody else")
	}
	return client.With(client.Options{Socket: filepath.Join(w.dir, "api.sock"), Dial: as(uid), Token: token})
}

func (w *world) binds(t *testing.T, role, namespace string) {
	t.Helper()
	_, err := apply(t, w.client, fmt.Sprintf(`apiVersion: heddle.io/v1alpha1
kind: AccessBinding
metadata: { name: bob }
spec: { role: %s, namespaces: ["%s"], subjects: [{ kind: User, name: "%d" }] }
`, role, namespace, bob), false)
	if err != nil {
		t.Fatal(err)
	}
}

// status is what a request was answered with, 200 for every success.
func status(err error) int {
	var problem *client.Problem
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &problem):
		return problem.Status
	}
	return 0
}

func wants(t *testing.T, what string, err error, want int, parts ...string) {
	t.Helper()
	if status(err) != want {
		t.Errorf("%s: %v, want status %d", what, err, want)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %q does not say %q", what, err, part)
		}
	}
}

type endpoint struct{ method, path string }

// everything that the API does, of each kind once.
var everything = []endpoint{
	{"GET", "/api/v1/namespaces"}, {"GET", "/api/v1/secrets"}, {"GET", "/api/v1/services?watch=1&resourceVersion=1"},
	{"GET", "/api/v1/namespaces/shop/services/cart"}, {"GET", "/api/v1/namespaces/shop"}, {"DELETE", "/api/v1/namespaces/shop"},
	{"PUT", "/api/v1/namespaces/shop/services/cart"}, {"POST", "/api/v1/namespaces/shop/services"},
	{"GET", "/apis/heddle.io/v1alpha1/accessbindings"}, {"DELETE", "/apis/heddle.io/v1alpha1/accessbindings/bob"},
	{"POST", "/heddle/v1/apply"}, {"POST", "/heddle/v1/certificates"}, {"PUT", "/heddle/v1/report"}, {"PUT", "/heddle/v1/report/changes"}, {"PUT", "/heddle/v1/report/unchanged"}, {"GET", "/heddle/v1/replicas"}, {"GET", "/heddle/v1/status"},
	{"GET", "/heddle/v1/proxies"}, {"GET", "/heddle/v1/proxies/n/config"}, {"GET", "/heddle/v1/logs/shop/cart-0/app"}, {"GET", "/heddle/v1/logs/controller"},
	{"GET", "/heddle/v1/names"}, {"GET", "/heddle/v1/names?watch=1"}, {"GET", "/heddle/v1/federation"}, {"POST", "/heddle/v1/federation/tokens"},
	{"POST", "/heddle/v1/federation/join"}, {"POST", "/heddle/v1/federation/rotate"}, {"GET", "/heddle/v1/ca/status"},
	{"POST", "/heddle/v1/ca/rotate"}, {"POST", "/heddle/v1/ca/csr"}, {"POST", "/heddle/v1/ca/install"}, {"POST", "/heddle/v1/ca/abort"}, {"POST", "/heddle/v1/tokens"}, {"GET", "/heddle/v1/tokens"},
	{"DELETE", "/heddle/v1/tokens/0123456789abcdef"}, {"GET", "/heddle/v1/audit"}, {"GET", "/heddle/v1/secrets"}, {"POST", "/heddle/v1/secrets/rotate"}, {"DELETE", "/heddle/v1/batches/1"}, {"GET", "/heddle/v1/agent/status"}, {"GET", "/heddle/v1/agent/checks"}, {"GET", "/heddle/v1/agent/bypass"}, {"GET", "/heddle/v1/agent/metrics"},
	{"POST", "/heddle/v1/agent/shutdown"}, {"POST", "/heddle/v1/agent/rotate"}, {"POST", "/heddle/v1/agent/replicas/shop/cart-0/rotate"},
	{"POST", "/heddle/v1/agent/replicas/shop/cart-0/handshake"}, {"POST", "/heddle/v1/agent/replicas/shop/cart-0/call"},
	{"GET", "/heddle/v1/agent/replicas/shop/cart-0/resolve"}, {"GET", "/heddle/v1/agent/replicas/shop/cart-0/admin/config_dump"},
	{"POST", "/heddle/v1/agent/replicas/shop/cart-0/admin/quitquitquit"}, {"GET", "/heddle/v1/backup"}, {"POST", "/heddle/v1/restore"},
	{"GET", "/metrics"}, {"GET", "/debug/pprof/"}, {"GET", "/debug/pprof/profile?seconds=1"}, {"GET", "/debug/pprof/trace?seconds=1"}, {"GET", "/nothing"}, {"GET", "/"},
}

func TestWhoHasNoRoleMayDoNothing(t *testing.T) {
	w := startAll(t)
	c := w.as(t, stranger, "")
	for _, e := range everything {
		if e.path == "/heddle/v1/certificates" || strings.HasPrefix(e.path, "/heddle/v1/report") {
			wants(t, e.path, c.Do(context.Background(), e.method, e.path, nil, nil), http.StatusForbidden, "nobody may not", "only the cluster's agent may")
			continue
		}
		wants(t, e.method+" "+e.path, c.Do(context.Background(), e.method, e.path, nil, nil), http.StatusForbidden, "nobody may not", "needs the role", "no role", "heddle access grant")
	}
	who, err := c.WhoAmI(context.Background())
	if err != nil || who.Caller != "user nobody" || !strings.HasPrefix(who.From, "unix pid ") || len(who.Grants) != 0 {
		t.Errorf("%+v %v", who, err)
	}
	var lines int
	if err := w.audit.Read(context.Background(), client.AuditFilter{Refused: true, Who: "nobody"}, func([]byte) error { lines++; return nil }); err != nil || lines != len(everything) {
		t.Errorf("%d refusals of %d are recorded: %v", lines, len(everything), err)
	}
}

// A remote caller without credentials is nobody, whatever else it sends.
func TestWhoIsNobodyIsToldSo(t *testing.T) {
	w := startAll(t)
	server := httptest.NewServer(w.server.Handler())
	defer server.Close()
	for _, e := range everything {
		for _, header := range []string{"", "Basic cm9vdDpyb290", "Bearer", "Bearer x", "Bearer hda1.0123456789abcdef." + strings.Repeat("a", 32), "Bearer hda1." + strings.Repeat("../", 8)} {
			request, err := http.NewRequest(e.method, server.URL+e.path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", header)
			if header == "" {
				request.Header.Del("Authorization")
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if response.StatusCode != http.StatusUnauthorized || response.Header.Get("WWW-Authenticate") != "Bearer" || !strings.Contains(string(body), "remedy") {
				t.Errorf("%s %s %q: %s %s", e.method, e.path, header, response.Status, body)
			}
		}
	}
}

func TestTheOwnerIsAdminAndNoAgent(t *testing.T) {
	w := startAll(t)
	c := w.as(t, owner, "")
	if _, err := apply(t, c, shop, false); err != nil {
		t.Error(err)
	}
	if _, err := c.Token(context.Background(), client.TokenRequest{}); err != nil {
		t.Error(err)
	}
	identity := ca.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}
	_, request, err := ca.NewRequest(identity, ca.ECDSAP256, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Sign(context.Background(), identity, request); status(err) != 0 && status(err) != http.StatusForbidden {
		t.Error(err)
	} else if !strings.Contains(fmt.Sprint(err), "only the cluster's agent may") {
		t.Errorf("the owner had a workload's certificate signed: %v", err)
	}
	if _, err := w.client.Sign(context.Background(), identity, request); err != nil {
		t.Error(err)
	}
}

const secrets = `apiVersion: v1
kind: Secret
metadata: { name: keys, namespace: shop }
stringData: { password: planted-secret }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: cart, namespace: shop }
spec: { command: [cart], env: [{ name: PASSWORD, value: planted-secret }] }
---
apiVersion: v1
kind: Namespace
metadata: { name: bank }
---
apiVersion: v1
kind: Service
metadata: { name: vault, namespace: bank }
spec: { selector: { app: vault }, ports: [{ port: 80 }] }
`

func TestAViewerReadsItsNamespaceWithoutSecrets(t *testing.T) {
	w := startAll(t)
	if _, err := apply(t, w.client, shop+"---\n"+secrets, false); err != nil {
		t.Fatal(err)
	}
	w.binds(t, "viewer", "shop")
	w.known.report.Replicas = []client.Replica{{Namespace: "shop", Workload: "cart"}, {Namespace: "bank", Workload: "vault"}}
	c, ctx := w.as(t, bob, ""), context.Background()
	for _, path := range []string{
		"/api/v1/namespaces/shop/secrets", "/api/v1/namespaces/shop/secrets/keys", "/api/v1/namespaces/shop/services", "/api/v1/namespaces/shop",
		"/apis/heddle.io/v1alpha1/namespaces/shop/workloads", "/apis/heddle.io/v1alpha1/namespaces/shop/workloads/cart", "/heddle/v1/replicas", "/heddle/v1/status",
	} {
		for _, accept := range []string{client.WireType, "application/json"} {
			text := ask(t, w, path, accept)
			if strings.Contains(text, "planted") || strings.Contains(text, "cGxhbnRlZC1zZWNyZXQ") || strings.Contains(text, "bank") || !strings.Contains(text, "shop") && path != "/heddle/v1/status" {
				t.Errorf("%s: %s", path, text)
			}
		}
	}
	for path, namespace := range map[string]string{
		"/api/v1/services": "all namespaces", "/api/v1/namespaces": "all namespaces", "/api/v1/namespaces/bank/services": `"bank"`, "/api/v1/namespaces/bank/services/vault": `"bank"`,
		"/api/v1/namespaces/bank": `"bank"`, "/heddle/v1/logs/bank/vault-0/app": `"bank"`, "/heddle/v1/names": "all namespaces", "/apis/heddle.io/v1alpha1/accessbindings": "all namespaces",
		"/api/v1/services?watch=1&resourceVersion=1": "all namespaces", "/heddle/v1/proxies/unknown/config": "all namespaces", "/heddle/v1/audit": "all namespaces",
	} {
		wants(t, path, c.Do(ctx, "GET", path, nil, nil), http.StatusForbidden, "user 60002 may not", namespace, `viewer in namespace "shop"`)
	}
	_, err := apply(t, c, shop, true)
	wants(t, "dry run", err, http.StatusForbidden, "needs the role editor", "--user 60002 -n shop")
	wants(t, "delete", c.Delete(ctx, objects.Service, "shop", "cart"), http.StatusForbidden, "editor")
	// The role ends with the binding, also on connections that stand.
	if err := w.client.Delete(ctx, objects.AccessBinding, "", "bob"); err != nil {
		t.Fatal(err)
	}
	wants(t, "after the binding", c.Do(ctx, "GET", "/api/v1/namespaces/shop/services", nil, nil), http.StatusForbidden, "no role")
}

// ask reads a page as bob.
func ask(t *testing.T, w *world, path, accept string) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return as(bob)(ctx, "unix", filepath.Join(w.dir, "api.sock"))
	}}}
	request, err := http.NewRequest(http.MethodGet, "http://heddle"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	response, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %s %v", path, response.Status, text, err)
	}
	return string(text)
}

const rooted = `apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: cart, namespace: shop }
spec: { command: [cart], user: root }
`

func TestWhatAnEditorMayStart(t *testing.T) {
	const scripted = "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: { name: own, namespace: shop }\nspec: { configPatches: [{ applyTo: CLUSTER, patch: { operation: REMOVE } }] }\n"
	w := startAll(t)
	if _, err := apply(t, w.client, shop, false); err != nil {
		t.Fatal(err)
	}
	w.binds(t, "editor", "shop")
	c := w.as(t, bob, "")
	plain := strings.Replace(rooted, ", user: root", "", 1)
	for content, parts := range map[string][]string{
		rooted: {"spec.user", `"root"`, access.LabelPrivileged},
		strings.Replace(rooted, "user: root", `user: "0"`, 1):                                                      {"spec.user"},
		strings.Replace(rooted, "user: root", `user: "60001"`, 1):                                                  {"spec.user"},
		strings.Replace(plain, "name: cart,", "name: cart, annotations: { heddle.io/proxy-path: /tmp/proxy },", 1): {"metadata.annotations[heddle.io/proxy-path]"},
		// What is not captured passes by policies.
		strings.Replace(plain, "name: cart,", `name: cart, annotations: { traffic.sidecar.istio.io/excludeOutboundPorts: "443" },`, 1):                        {"metadata.annotations[traffic.sidecar.istio.io/…]", "outbound to ports 443 is not captured"},
		strings.Replace(plain, "name: cart,", `name: cart, annotations: { traffic.sidecar.istio.io/includeInboundPorts: "" },`, 1):                            {"all inbound is not captured", access.LabelPrivileged},
		strings.Replace(plain, "name: cart,", `name: cart, annotations: { proxy.istio.io/config: "proxyMetadata: { ISTIO_OUTBOUND_OWNER_GROUPS: '' }" },`, 1): {"metadata.annotations[proxy.istio.io/config].proxyMetadata", "outbound of all groups"},
		strings.Replace(plain, "namespace: shop", "namespace: default", 1):                                                                                    {"needs the role editor", `"default"`},
		"apiVersion: v1\nkind: Namespace\nmetadata: { name: shop, labels: { heddle.io/privileged: \"true\" } }\n":                                             {"editor in all namespaces"},
		"apiVersion: v1\nkind: Namespace\nmetadata: { name: own }\n":                                                                                          {"editor in all namespaces"},
		boutique: {"editor in all namespaces"},
		"apiVersion: heddle.io/v1alpha1\nkind: AccessBinding\nmetadata: { name: me }\nspec: { role: admin, namespaces: [\"*\"], subjects: [{ kind: User, name: \"60002\" }] }\n": {"admin in all namespaces"},
		"apiVersion: v1\nkind: Secret\ntype: heddle.io/api-token\nmetadata: { name: api-token-0123456789abcdef, namespace: istio-system }\n":                                     {"admin in all namespaces"},
		"apiVersion: v1\nkind: Secret\ntype: heddle.io/join-token\nmetadata: { name: forged, namespace: shop }\n":                                                                {"admin in all namespaces"},
		scripted: {"admin in all namespaces", "EnvoyFilter/shop/own"},
	} {
		_, err := apply(t, c, content, false)
		wants(t, content, err, http.StatusForbidden, append(parts, "user 60002 may not")...)
	}
	// One that may not be makes the whole batch one that may not be.
	_, err := apply(t, c, shop+"---\n"+rooted, false)
	wants(t, "batch", err, http.StatusForbidden)
	if _, err := apply(t, c, plain+"---\n"+strings.SplitN(shop, "---\n", 2)[1], false); err != nil {
		t.Error(err)
	}
	// What an admin has started, an editor may restart and delete, but not turn into something else.
	proxied := strings.Replace(plain, "name: cart,", "name: cart, annotations: { heddle.io/proxy-path: /opt/proxy },", 1)
	if _, err := apply(t, w.client, proxied, false); err != nil {
		t.Fatal(err)
	}
	if _, err := apply(t, c, strings.Replace(proxied, "/opt/proxy", `/opt/proxy, heddle.io/stopped: "true"`, 1), false); err != nil {
		t.Error(err)
	}
	_, err = apply(t, c, strings.Replace(proxied, "[cart]", "[sh]", 1), false)
	wants(t, "another command", err, http.StatusForbidden, "heddle.io/proxy-path")
	// What leaves nothing out of capture is everybody's; less of what an admin left out, or more, is not an editor's.
	const including = `name: cart, annotations: { traffic.sidecar.istio.io/includeOutboundIPRanges: "10.0.0.0/8", traffic.sidecar.istio.io/includeOutboundPorts: "80,81" },`
	open := strings.Replace(plain, "name: cart,", including, 1)
	if _, err := apply(t, w.client, open, false); err != nil {
		t.Fatal(err)
	}
	if _, err := apply(t, c, strings.Replace(open, "80,81", "81, 80", 1), false); err != nil {
		t.Errorf("the same in other words: %v", err)
	}
	for _, ports := range []string{"80", "80,81,82", ""} {
		_, err = apply(t, c, strings.Replace(open, "80,81", ports, 1), false)
		wants(t, "other ports "+ports, err, http.StatusForbidden, "is not captured")
	}
	if _, err := apply(t, c, strings.Replace(open, "10.0.0.0/8", "*", 1), false); err != nil {
		t.Errorf("everything: %v", err)
	}
	// An admin has to say that the namespace may, first or at once; and that it may not any more, last.
	const allowing = "apiVersion: v1\nkind: Namespace\nmetadata: { name: shop, labels: { heddle.io/privileged: \"true\" } }\n"
	capable := strings.Replace(plain, "[cart]", "[cart], capabilities: [NET_RAW]", 1)
	for content, path := range map[string]string{rooted: "spec.user", strings.Replace(rooted, "root", "nobody", 1): "spec.user", capable: "spec.capabilities"} {
		_, err = apply(t, w.client, content, false)
		wants(t, content, err, http.StatusUnprocessableEntity, path, "does not allow it", access.LabelPrivileged)
	}
	if _, err := apply(t, w.client, rooted+"---\n"+allowing, false); err != nil {
		t.Fatal(err)
	}
	forbidding := strings.Replace(allowing, "true", "false", 1)
	_, err = apply(t, w.client, forbidding, false)
	wants(t, "a namespace that ceases to allow it", err, http.StatusUnprocessableEntity, access.LabelPrivileged, "shop/cart needs it")
	wants(t, "a namespace that goes", w.client.Delete(context.Background(), objects.Namespace, "", "shop"), http.StatusUnprocessableEntity, "shop/cart needs it")
	if _, err := apply(t, c, strings.Replace(rooted, "[cart]", "[sh]", 1), false); err != nil {
		t.Errorf("in a privileged namespace: %v", err)
	}
	if _, err := apply(t, c, scripted, false); err != nil {
		t.Errorf("an EnvoyFilter in a privileged namespace: %v", err)
	}
	if _, err := apply(t, w.client, plain+"---\n"+forbidding, false); err != nil {
		t.Error(err)
	}
	// An editor of everything may make namespaces, but not privileged ones, and no access.
	w.binds(t, "editor", "*")
	if _, err := apply(t, c, "apiVersion: v1\nkind: Namespace\nmetadata: { name: own }\n", false); err != nil {
		t.Error(err)
	}
	for _, where := range []string{"labels", "annotations"} {
		_, err = apply(t, c, "apiVersion: v1\nkind: Namespace\nmetadata: { name: own, "+where+": { heddle.io/privileged: \"true\" } }\n", false)
		wants(t, where, err, http.StatusForbidden, access.LabelPrivileged, "admin in all namespaces")
	}
	wants(t, "access", c.Delete(context.Background(), objects.AccessBinding, "", "bob"), http.StatusForbidden, "admin")
	// What is in no namespace is in none whatever is written into it.
	w.binds(t, "admin", "shop")
	for _, content := range []string{
		"apiVersion: heddle.io/v1alpha1\nkind: AccessBinding\nmetadata: { name: me, namespace: shop }\nspec: { role: admin, namespaces: [\"*\"], subjects: [{ kind: User, name: \"60002\" }] }\n",
		"apiVersion: v1\nkind: Namespace\nmetadata: { name: mine, namespace: shop }\n",
	} {
		if _, err = apply(t, c, content, false); err == nil {
			t.Errorf("an admin of a namespace wrote %s", content)
		}
	}
	// An admin of a namespace is none of the machine.
	w.binds(t, "admin", "default")
	_, err = apply(t, c, strings.Replace(rooted, "namespace: shop", "namespace: default", 1), false)
	wants(t, "admin of a namespace", err, http.StatusForbidden, "spec.user")
}

// Where workloads run without sandboxes anyway, no namespace has to allow it; editors are held back all the same.
func TestPrivilegedWorkloads(t *testing.T) {
	w := startAll(t, func(s *Server) { s.config.PrivilegedWorkloads = true })
	if _, err := apply(t, w.client, shop+"---\n"+rooted, false); err != nil {
		t.Error(err)
	}
	w.binds(t, "editor", "shop")
	_, err := apply(t, w.as(t, bob, ""), strings.Replace(rooted, "name: cart", "name: other", 1), false)
	wants(t, "an editor", err, http.StatusForbidden, "spec.user")
}

// Of two that want the same, the oldest has it. A manifest that says that it is older than another namespace's is not believed:
// neither when it is created nor when it is changed, nor by the revision that is put.
func TestNobodyIsOlderThanHeIs(t *testing.T) {
	const claims = "apiVersion: v1\nkind: ServiceAccount\nmetadata: { name: early, namespace: shop, creationTimestamp: \"2001-01-01T00:00:00Z\", labels: { n: \"%d\" } }\n"
	w := startAll(t)
	w.binds(t, "editor", "shop")
	c, began := w.as(t, bob, ""), time.Now().Add(-time.Second).Truncate(time.Second)
	var first metav1.Time
	for n := range 3 {
		if n < 2 {
			if _, err := apply(t, c, fmt.Sprintf(claims, n), false); err != nil {
				t.Fatal(err)
			}
		} else {
			o := w.known.store.Object(objects.Key{Kind: "ServiceAccount", Namespace: "shop", Name: "early"}).DeepCopy()
			o.SetCreationTimestamp(metav1.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC))
			o.SetLabels(map[string]string{"n": "2"})
			if _, err := c.Put(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		o := w.known.store.Object(objects.Key{Kind: "ServiceAccount", Namespace: "shop", Name: "early"})
		if o == nil || o.GetLabels()["n"] != fmt.Sprint(n) {
			t.Fatalf("%d: %+v", n, o)
		}
		if n == 0 {
			first = o.GetCreationTimestamp()
		}
		if created := o.GetCreationTimestamp(); created.Time.Before(began) || !created.Equal(&first) {
			t.Errorf("%d: created at %v, applied after %v", n, created, began)
		}
	}
}

// A secret of the cluster's own cannot be replaced under its name by one of another type.
func TestTokensOfOthersCannotBeTouched(t *testing.T) {
	w := startAll(t)
	made, err := w.client.MakeAPIToken(context.Background(), client.APITokenRequest{Role: "viewer", Namespace: "*"})
	if err != nil {
		t.Fatal(err)
	}
	w.binds(t, "editor", "istio-system")
	c := w.as(t, bob, "")
	name := "api-token-" + made.ID
	_, err = apply(t, c, "apiVersion: v1\nkind: Secret\nmetadata: { name: "+name+", namespace: istio-system }\n", false)
	wants(t, "replace", err, http.StatusForbidden, "admin in all namespaces")
	o := &objects.Object{Kind: objects.Secret, Resource: &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "istio-system"}, Type: access.TokenSecretType, Data: map[string][]byte{"role": []byte("admin")}}}
	_, err = c.Put(context.Background(), o)
	wants(t, "put", err, http.StatusForbidden, "admin in all namespaces")
	wants(t, "delete", c.Delete(context.Background(), objects.Secret, "istio-system", name), http.StatusForbidden, "admin in all namespaces")
}

func TestTokens(t *testing.T) {
	w := startAll(t)
	ctx := context.Background()
	if _, err := apply(t, w.client, shop+"---\n"+secrets, false); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []client.APITokenRequest{{Role: "king", Namespace: "shop"}, {Role: "viewer"}, {Role: "viewer", Namespace: "shop", TTL: 1}, {Role: "viewer", Namespace: "shop", TTL: 366 * 24 * time.Hour}, {Role: "viewer", Namespace: "shop", Note: "a\nb"}} {
		_, err := w.client.MakeAPIToken(ctx, bad)
		wants(t, fmt.Sprint(bad), err, http.StatusBadRequest)
	}
	made, err := w.client.MakeAPIToken(ctx, client.APITokenRequest{Role: "editor", Namespace: "shop", Note: "pipeline", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c := w.as(t, stranger, made.Token)
	if who, err := c.WhoAmI(ctx); err != nil || who.Caller != "token "+made.ID+" (pipeline)" || len(who.Grants) != 1 {
		t.Errorf("%+v %v", who, err)
	}
	if _, err := apply(t, c, strings.Replace(strings.SplitN(shop, "---\n", 2)[1], "port: 80", "port: 81", 1), false); err != nil {
		t.Error(err)
	}
	wants(t, "another namespace", c.Do(ctx, "GET", "/api/v1/namespaces/bank/services", nil, nil), http.StatusForbidden, "token "+made.ID, "heddle token create")
	wants(t, "certificates", c.Do(ctx, "POST", "/heddle/v1/certificates", client.SigningRequest{}, nil), http.StatusForbidden, "only the cluster's agent")
	// A token of root's is not root.
	wants(t, "as root", client.With(client.Options{Socket: filepath.Join(w.dir, "api.sock"), Token: made.Token}).Do(ctx, "GET", "/api/v1/namespaces", nil, nil), http.StatusForbidden)
	wrong := made.Token[:len(made.Token)-1] + string('a'+(made.Token[len(made.Token)-1]-'a'+1)%26)
	for _, token := range []string{wrong, made.Token[:20], "hda1.ffffffffffffffff." + strings.Repeat("a", 32), strings.ToUpper(made.Token)} {
		// Also for root: who shows a token is who the token says, or nobody.
		wants(t, "wrong", client.With(client.Options{Socket: filepath.Join(w.dir, "api.sock"), Token: token}).Do(ctx, "GET", "/heddle/v1/status", nil, nil), http.StatusUnauthorized, "token")
	}
	secret := strings.Split(made.Token, ".")[2]
	all := w.server.config.Store.Objects()
	if text, err := json.Marshal(all); err != nil || strings.Contains(string(text), secret) {
		t.Errorf("the token is in the store: %v", err)
	}
	if text := read(t, filepath.Join(w.dir, "audit", "audit.log")); strings.Contains(text, secret) || !strings.Contains(text, `"token.create"`) || !strings.Contains(text, `"who":"token `+made.ID) || !strings.Contains(text, "id "+made.ID) {
		t.Error(text)
	}
	w.clock.ahead.Store(int64(61 * time.Minute))
	wants(t, "expired", c.Do(ctx, "GET", "/heddle/v1/status", nil, nil), http.StatusUnauthorized, "expired")
	w.clock.ahead.Store(0)
	if err := w.client.RevokeAPIToken(ctx, made.ID); err != nil {
		t.Error(err)
	}
	wants(t, "revoked", c.Do(ctx, "GET", "/heddle/v1/status", nil, nil), http.StatusUnauthorized, "not known")
	wants(t, "revoked twice", w.client.RevokeAPIToken(ctx, made.ID), http.StatusNotFound)
}

func TestNobodyGivesMoreThanHeHas(t *testing.T) {
	w := startAll(t)
	ctx := context.Background()
	w.binds(t, "admin", "shop")
	c := w.as(t, bob, "")
	for _, namespace := range []string{"*", "bank"} {
		_, err := c.MakeAPIToken(ctx, client.APITokenRequest{Role: "viewer", Namespace: namespace})
		wants(t, namespace, err, http.StatusForbidden, "admin")
	}
	made, err := c.MakeAPIToken(ctx, client.APITokenRequest{Role: "admin", Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.as(t, stranger, made.Token).MakeAPIToken(ctx, client.APITokenRequest{Role: "viewer", Namespace: "shop"})
	wants(t, "a token's token", err, http.StatusForbidden, "outlive")
	other, err := w.client.MakeAPIToken(ctx, client.APITokenRequest{Role: "viewer", Namespace: "*"})
	if err != nil {
		t.Fatal(err)
	}
	wants(t, "revoke", c.RevokeAPIToken(ctx, other.ID), http.StatusForbidden)
	if seen, err := c.APITokens(ctx); err != nil || len(seen) != 1 || seen[0].ID != made.ID || seen[0].MadeBy != "user 60002" {
		t.Errorf("%+v %v", seen, err)
	}
}

// A role that is taken away ends what it opened: watches and followed logs do not outlive it.
func TestStreamsEndWithTheRole(t *testing.T) {
	w := startAll(t, func(s *Server) { s.lookAgain = 10 * time.Millisecond })
	ctx := context.Background()
	if _, err := apply(t, w.client, shop, false); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "logs", "shop", "cart-0", "app.log"), []byte("line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.binds(t, "viewer", "shop")
	made, err := w.client.MakeAPIToken(ctx, client.APITokenRequest{Role: "viewer", Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	standing := map[string]io.Reader{}
	for _, path := range []string{"/api/v1/namespaces/shop/services?watch=1&resourceVersion=1", "/heddle/v1/logs/shop/cart-0/app?follow=1"} {
		for who, c := range map[string]*client.Client{"bob": w.as(t, bob, ""), "the token": w.as(t, stranger, made.Token)} {
			body, err := c.Open(ctx, http.MethodGet, path, nil)
			if err != nil {
				t.Fatalf("%s at %s: %v", who, path, err)
			}
			defer body.Close()
			if _, err := body.Read(make([]byte, 1)); err != nil {
				t.Fatalf("%s at %s: %v", who, path, err)
			}
			standing[who+" at "+path] = body
		}
	}
	if err := errors.Join(w.client.Delete(ctx, objects.AccessBinding, "", "bob"), w.client.RevokeAPIToken(ctx, made.ID)); err != nil {
		t.Fatal(err)
	}
	for what, body := range standing {
		if _, err := io.Copy(io.Discard, body); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Whoever may watch can take all the places for that, and does not keep the agent from hearing what is to run.
func TestWatchesOfOthersDoNotKeepTheAgentOut(t *testing.T) {
	w := startAll(t, func(s *Server) { s.watches = make(chan struct{}, 2) })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := apply(t, w.client, shop, false); err != nil {
		t.Fatal(err)
	}
	w.binds(t, "viewer", "*")
	watch := func(c *client.Client, path string) error {
		body, err := c.Open(ctx, http.MethodGet, path, nil)
		if err == nil {
			t.Cleanup(func() { body.Close() })
		}
		return err
	}
	workloads, names := client.Path(objects.Workload, "", "")+"?watch=1&resourceVersion=1", "/heddle/v1/names?watch=1"
	viewer := w.as(t, bob, "")
	if err := errors.Join(watch(viewer, workloads), watch(viewer, names)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{workloads, names} {
		wants(t, "a third watch at "+path, watch(viewer, path), http.StatusTooManyRequests, "2 are the limit")
		if err := watch(w.client, path); err != nil {
			t.Errorf("the agent at %s: %v", path, err)
		}
	}
}

// Nor do those who read logs, and follow them.
func TestReadersOfLogsAreBounded(t *testing.T) {
	w := startAll(t, func(s *Server) { s.logs = make(chan struct{}, 2) })
	if _, err := apply(t, w.client, shop, false); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "logs", "shop", "cart-0", "app.log"), []byte("line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.binds(t, "viewer", "shop")
	ctx, viewer := t.Context(), w.as(t, bob, "")
	const path = "/heddle/v1/logs/shop/cart-0/app"
	var open []io.Closer
	for range 2 {
		body, err := viewer.Open(ctx, http.MethodGet, path+"?follow=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, body)
	}
	for _, query := range []string{"", "?follow=1"} {
		_, err := viewer.Open(ctx, http.MethodGet, path+query, nil)
		wants(t, "a third reader", err, http.StatusTooManyRequests, "2 are the limit")
		body, err := w.client.Open(ctx, http.MethodGet, path+query, nil)
		if err != nil {
			t.Fatalf("the agent: %v", err)
		}
		body.Close()
	}
	for _, body := range open {
		body.Close()
	}
	// Their places are free as soon as the server has noticed.
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		body, err := viewer.Open(ctx, http.MethodGet, path, nil)
		if err == nil {
			body.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after they were given back: %v", err)
		}
	}
}

func TestWhatIsPassedOnToTheAgent(t *testing.T) {
	w := startAll(t)
	var seen []string
	listener, err := net.Listen("unix", filepath.Join(w.dir, "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	agent := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Method+" "+r.URL.Path+r.Header.Get("Authorization"))
		_, _ = io.WriteString(w, "{}")
	})}
	go func() { _ = agent.Serve(listener) }()
	defer agent.Close()
	ctx := context.Background()
	calls := []struct {
		method, path string
		viewer       int
		editor       int
	}{
		{"GET", "replicas/shop/cart-0/resolve", 200, 200},
		{"GET", "replicas/shop/cart-0/admin/stats/prometheus", 200, 200},
		{"GET", "replicas/shop/cart-0/admin/config_dump", 200, 200},
		{"GET", "replicas/shop/cart-0/admin/drain_listeners", 403, 200},
		{"POST", "replicas/shop/cart-0/admin/config_dump", 403, 200},
		{"POST", "replicas/shop/cart-0/handshake", 403, 200},
		{"POST", "replicas/shop/cart-0/rotate", 403, 200},
		{"GET", "replicas/bank/vault-0/resolve", 403, 403},
		{"POST", "replicas/bank/vault-0/rotate", 403, 403},
		{"GET", "replicas/shop%2F..%2Fbank/vault-0/resolve", 400, 400},
		{"GET", "replicas/shop/cart-0/admin/..%2f..%2f..%2fbank/vault-0/admin/certs", 400, 400},
		{"GET", "replicas/shop%2Fcart-0%2Fadmin/x/config_dump", 403, 200},
		{"GET", "status", 403, 403},
		{"POST", "rotate", 403, 403},
		{"POST", "shutdown", 403, 403},
	}
	for _, role := range []string{"viewer", "editor"} {
		w.binds(t, role, "shop")
		c := w.as(t, bob, "")
		for _, call := range calls {
			want := call.viewer
			if role == "editor" {
				want = call.editor
			}
			before := len(seen)
			wants(t, role+" "+call.method+" "+call.path, c.Do(ctx, call.method, "/heddle/v1/agent/"+call.path, nil, nil), want)
			if reached := len(seen) > before; reached != (want == 200) {
				t.Errorf("%s %s %s reached the agent: %t", role, call.method, call.path, reached)
			}
		}
	}
	for _, s := range seen {
		if strings.Contains(s, "bank") {
			t.Errorf("the agent was told %s", s)
		}
	}
	if text := read(t, filepath.Join(w.dir, "audit", "audit.log")); strings.Count(text, `"action":"rotate"`) != 2 || strings.Count(text, `"action":"proxy.admin"`) != 2 {
		t.Error(text)
	}
}

func TestChangesAreRecordedBeforeTheyAreMade(t *testing.T) {
	w := startAll(t)
	if _, err := apply(t, w.client, shop, false); err != nil {
		t.Fatal(err)
	}
	var records []audit.Record
	err := w.client.Audit(context.Background(), client.AuditFilter{What: "Service/shop/cart"}, func(line json.RawMessage) error {
		var r audit.Record
		records = append(records, r)
		return json.Unmarshal(line, &records[len(records)-1])
	})
	if err != nil || len(records) != 1 {
		t.Fatalf("%+v %v", records, err)
	}
	r := records[0]
	if r.Who != "user root" || r.For != "me" || !strings.HasPrefix(r.From, "unix pid ") || r.Action != "apply" || r.Result != audit.Begun ||
		len(r.Objects) != 2 || r.Objects[1] != (audit.Object{Name: "Service/shop/cart", Action: "created"}) {
		t.Errorf("%+v", r)
	}
	if text := read(t, filepath.Join(w.dir, "audit", "audit.log")); strings.Count(text, r.ID) != 2 || !strings.Contains(text, `"result":"done"`) {
		t.Error(text)
	}
	// Nothing is recorded of what changes nothing.
	before := read(t, filepath.Join(w.dir, "audit", "audit.log"))
	for _, dry := range []bool{true, false} {
		if _, err := apply(t, w.client, shop, dry); err != nil {
			t.Fatal(err)
		}
	}
	if after := read(t, filepath.Join(w.dir, "audit", "audit.log")); after != before {
		t.Error(after)
	}
}

// What cannot be recorded is not done: neither a change, nor a signing, nor a token.
func TestWhatCannotBeRecordedIsNotDone(t *testing.T) {
	ctx, gone := context.Background(), filepath.Join(t.TempDir(), "gone")
	broken, err := audit.Open(audit.Options{Dir: gone, Size: 1, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w := startAll(t, func(s *Server) { s.config.Audit = broken })
	if _, err := apply(t, w.client, shop, false); err != nil {
		t.Fatal(err)
	}
	identity := ca.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}
	_, request, err := ca.NewRequest(identity, ca.ECDSAP256, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.Sign(ctx, identity, request); err != nil {
		t.Fatal(err)
	}
	// The next records need other files, and there is nowhere to put them.
	if err := os.RemoveAll(gone); err != nil {
		t.Fatal(err)
	}
	_, err = apply(t, w.client, strings.Replace(shop, "port: 80", "port: 81", 1), false)
	wants(t, "apply", err, http.StatusServiceUnavailable, "cannot be recorded")
	wants(t, "delete", w.client.Delete(ctx, objects.Service, "shop", "cart"), http.StatusServiceUnavailable, "cannot be recorded")
	o, err := w.client.Get(ctx, objects.Service, "shop", "cart")
	if service, ok := o.Resource.(*corev1.Service); err != nil || !ok || service.Spec.Ports[0].Port != 80 {
		t.Errorf("it was changed all the same: %+v %v", o, err)
	}
	if _, err := w.client.Sign(ctx, identity, request); err == nil || !strings.Contains(err.Error(), "cannot be recorded") {
		t.Errorf("signed: %v", err)
	}
	if _, err := w.client.MakeAPIToken(ctx, client.APITokenRequest{Role: "viewer", Namespace: "*"}); status(err) != http.StatusServiceUnavailable {
		t.Errorf("a token: %v", err)
	}
	if s, err := w.client.Status(ctx); err != nil || !strings.Contains(s.Problem, "audit log") {
		t.Errorf("%+v %v", s, err)
	}
	// It goes on by itself.
	if err := os.MkdirAll(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"audit.log", "signings.log"} {
		if err := os.WriteFile(filepath.Join(gone, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.client.Delete(ctx, objects.Service, "shop", "cart"); err != nil {
		t.Error(err)
	}
	if s, err := w.client.Status(ctx); err != nil || strings.Contains(s.Problem, "changes") || !strings.Contains(s.Problem, "signings are refused") {
		t.Errorf("signings were not tried again: %+v %v", s, err)
	}
	if _, err := w.client.Sign(ctx, identity, request); err != nil {
		t.Error(err)
	}
	if s, err := w.client.Status(ctx); err != nil || s.Problem != "" {
		t.Errorf("%+v %v", s, err)
	}
}

// A user of the machine who holds all the connections that he may keeps nobody else out.
func TestConnectionsOfOneUserAreBounded(t *testing.T) {
	w := startAll(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can call as somebody else")
	}
	socket := filepath.Join(w.dir, "api.sock")
	var last net.Conn
	for range 3 * maxPerCaller {
		conn, err := as(stranger)(context.Background(), "unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		last = conn
	}
	// They are accepted in order.
	if _, err := last.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the last one was let in: %v", err)
	}
	if refused := w.conns.Refused.Load(); refused != 2*maxPerCaller {
		t.Errorf("%d connections were refused", refused)
	}
	if _, err := w.client.Status(context.Background()); err != nil {
		t.Errorf("root: %v", err)
	}
	if _, err := w.as(t, owner, "").Status(context.Background()); err != nil {
		t.Errorf("the owner: %v", err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
