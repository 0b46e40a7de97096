package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/server/client"
)

// meshAPI is the API of a cluster that belongs to a mesh. Tests change what it answers.
type meshAPI struct {
	mesh client.FederationStatus
	// authority is the mesh's, installed what was to be taken into use as it.
	authority client.AuthorityStatus
	installed client.AuthorityInstall
	names     client.Names
	gns       *objects.Object
	services  []*objects.Object
	replicas  []client.Replica
	// action that applying has.
	action string
	// refuse is the answer to everything that writes.
	refuse *client.Problem
	// meet answers handshakes, resolves what DNS knows.
	meet func(client.HandshakeRequest) (client.HandshakeResult, *client.Problem)
	// calls answers calls; the default is that the service answers and proves its name.
	calls    func(client.CallRequest) (client.CallResult, *client.Problem)
	resolves []client.NamedHost
	// secrets is how Secrets are encrypted.
	secrets seal.Status

	applied []client.ApplyRequest
	deleted []string
	tokens  []client.TokenRequest
	joins   []client.JoinRequest
}

const testToken = "hdl1.0123456789abcdef.abcdefghijklmnopqrstuvwxyz234567.0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func service(name string) *objects.Object {
	return &objects.Object{Kind: objects.Service, Resource: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}}}}}
}

func ready(name string) client.Replica {
	return client.Replica{Namespace: "shop", Workload: name, ServiceAccount: name, Labels: map[string]string{"app": name}, Ready: true, State: objects.ReplicaState{Name: name + "-0"}}
}

// healthyMesh is the primary's view of two clusters with a shop in both.
func healthyMesh() *meshAPI {
	export := func(name string, ready uint32) registry.Export {
		return registry.Export{Namespace: "shop", Name: name, Ports: []registry.ExportPort{{Number: 80, Protocol: "HTTP"}}, Groups: []registry.ExportGroup{{Ready: ready}}}
	}
	host := func(name string) client.NamedHost {
		return client.NamedHost{Name: name, Addresses: []netip.Addr{netip.MustParseAddr("240.240.0.1")}}
	}
	root := client.Root{Subject: "CN=Heddle root 0a1b2c3d,O=cluster.local", Hash: strings.Repeat("ab", 32), Expires: noon.Add(365 * 24 * time.Hour)}
	return &meshAPI{
		authority: client.AuthorityStatus{Cluster: "cluster1", Primary: "cluster1", Root: root, Trusted: []client.Root{root}, Issuer: "Heddle intermediate cluster1", IssuerExpires: noon.Add(90 * 24 * time.Hour)},
		mesh: client.FederationStatus{Cluster: "cluster1", Primary: "cluster1", Advertise: "198.18.0.2", Connected: true,
			Issuer: "Heddle intermediate cluster1", IssuerExpires: noon.Add(90 * 24 * time.Hour),
			Clusters: []client.ClusterStatus{
				{Name: "cluster1", Primary: true, Self: true, Connected: true, Reachable: true, Version: "v1", Joined: noon.Add(-time.Hour),
					Gateways: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.2:15443")}, Anchors: []string{"anchor of cluster1"}},
				{Name: "cluster2", Connected: true, LastSeen: noon.Add(-time.Second), Reachable: true, Version: "v1", Joined: noon.Add(-30 * time.Minute), Services: 2,
					Gateways: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.3:15443")}, Exports: []registry.Export{export("cart", 2), export("ads", 1)}, Anchors: []string{"anchor of cluster2"}},
			}},
		names: client.Names{Domain: "cluster.local", Hosts: []client.NamedHost{host("ads.acme.demo"), host("ads.shop.svc.cluster.local"), host("cart.acme.demo"), host("cart.shop.svc.cluster.local")}},
		gns: &objects.Object{Kind: objects.GlobalNamespace, Version: "5", Resource: &v1alpha1.GlobalNamespace{
			ObjectMeta: metav1.ObjectMeta{Name: "boutique", CreationTimestamp: metav1.NewTime(noon.Add(-10 * time.Minute))},
			Spec:       v1alpha1.GlobalNamespaceSpec{Domain: "acme.demo", Mappings: []v1alpha1.NamespaceMapping{{Cluster: "cluster*", Namespace: "shop"}}}}},
		services: []*objects.Object{service("cart")}, replicas: []client.Replica{ready("cart")}, action: client.ActionCreated,
	}
}

// changing has the root replaced, and somebody who is awaited.
func changing(a *meshAPI) {
	next := client.Root{Subject: "CN=Heddle root 4e5f6071,O=cluster.local", Hash: strings.Repeat("cd", 32), Expires: noon.Add(2 * 365 * 24 * time.Hour)}
	a.authority.Trusted = append(a.authority.Trusted, next)
	a.authority.Change = &client.RootChange{ID: strings.Repeat("ef", 32), Kind: "rotate", Phase: "trust", Began: noon, Since: noon,
		Awaited: []string{"cluster2: shop/cart-0: the proxy goes on with an earlier one"}}
}

// answered is how a healthy service ends a call.
func answered(r client.CallRequest) (client.CallResult, *client.Problem) {
	name, _, _ := strings.Cut(r.Host, ".")
	return client.CallResult{Did: fmt.Sprintf("GET / at 10.0.0.1:%d", r.Port), Answer: "200 OK", Identity: "spiffe://cluster.local/ns/shop/sa/" + name, Counted: true, Flags: "-", Took: 2 * time.Millisecond}, nil
}

func (a *meshAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	send := func(value any) { _ = json.NewEncoder(w).Encode(value) }
	take := func(into any) {
		if err := json.NewDecoder(r.Body).Decode(into); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}
	if a.refuse != nil && r.Method != http.MethodGet {
		w.WriteHeader(a.refuse.Status)
		send(a.refuse)
		return
	}
	// Any replica answers as the first one does.
	path := regexp.MustCompile(`/shop/[a-z]+-0/`).ReplaceAllString(r.URL.Path, "/shop/cart-0/")
	switch key := r.Method + " " + path; key {
	case "GET /heddle/v1/federation", "POST /heddle/v1/federation/rotate":
		send(a.mesh)
	case "GET /heddle/v1/ca/status", "POST /heddle/v1/ca/rotate", "POST /heddle/v1/ca/install", "POST /heddle/v1/ca/abort":
		if r.URL.Path == "/heddle/v1/ca/install" {
			take(&a.installed)
		}
		send(a.authority)
	case "POST /heddle/v1/ca/csr":
		send(client.AuthorityRequested{Request: "-----BEGIN CERTIFICATE REQUEST-----\n"})
	case "POST /heddle/v1/federation/tokens":
		var request client.TokenRequest
		take(&request)
		a.tokens = append(a.tokens, request)
		send(client.TokenResponse{Token: testToken, Expires: noon.Add(request.TTL), Address: "198.18.0.2:15443"})
	case "POST /heddle/v1/federation/join":
		var request client.JoinRequest
		take(&request)
		a.joins = append(a.joins, request)
		send(a.mesh)
	case "GET /heddle/v1/names":
		send(a.names)
	case "GET /heddle/v1/replicas":
		send(a.replicas)
	case "GET /api/v1/services":
		send(client.List{Items: a.services})
	case "GET /apis/heddle.io/v1alpha1/globalnamespaces":
		list := client.List{}
		if a.gns != nil {
			list.Items = append(list.Items, a.gns)
		}
		send(list)
	case "GET /apis/heddle.io/v1alpha1/globalnamespaces/boutique":
		send(a.gns)
	case "POST /heddle/v1/apply":
		var request client.ApplyRequest
		take(&request)
		a.applied = append(a.applied, request)
		send(client.ApplyResponse{DryRun: request.DryRun, Results: []client.Result{{Key: a.gns.Key(), Action: a.action, Warnings: []string{"spec.mappings: cluster9 has not joined"}}}})
	case "DELETE /apis/heddle.io/v1alpha1/globalnamespaces/boutique", "DELETE /apis/heddle.io/v1alpha1/clusters/cluster2":
		a.deleted = append(a.deleted, r.URL.Path)
		send(client.Result{Action: client.ActionDeleted})
	case "GET /heddle/v1/secrets":
		send(a.secrets)
	case "GET /heddle/v1/status":
		send(client.Status{Cluster: a.mesh.Cluster, PID: 7, Revision: 3, Objects: 4})
	case "GET /heddle/v1/agent/status":
		send(agent.Status{PID: 8, Replicas: a.replicas})
	case "GET /heddle/v1/agent/checks":
		send([]agent.Check{{Subject: "shop/cart-0", Name: "ready", How: agent.Read, OK: true, Detail: "pid 1"}})
	case "GET /heddle/v1/proxies":
		send([]client.ProxyStatus{{Namespace: "shop", Name: "cart-0", Connected: true, Revision: 3}})
	case "POST /heddle/v1/agent/replicas/shop/cart-0/handshake":
		var request client.HandshakeRequest
		take(&request)
		result, problem := a.meet(request)
		if problem != nil {
			w.WriteHeader(problem.Status)
			send(problem)
			return
		}
		send(result)
	case "POST /heddle/v1/agent/replicas/shop/cart-0/call":
		var request client.CallRequest
		take(&request)
		answers := a.calls
		if answers == nil {
			answers = answered
		}
		result, problem := answers(request)
		if problem != nil {
			w.WriteHeader(problem.Status)
			send(problem)
			return
		}
		send(result)
	case "GET /heddle/v1/agent/replicas/shop/cart-0/resolve":
		for _, h := range a.resolves {
			if h.Name == r.URL.Query().Get("name") {
				send(h.Addresses)
				return
			}
		}
		w.WriteHeader(http.StatusBadGateway)
		send(client.Problem{Status: http.StatusBadGateway, What: "the name does not resolve", Where: r.URL.Query().Get("name")})
	default:
		if r.Method == http.MethodGet && strings.Count(r.URL.Path, "/") <= 4 && strings.HasPrefix(r.URL.Path, "/api") {
			send(client.List{})
			return
		}
		w.WriteHeader(http.StatusNotFound)
		send(client.Problem{What: "not found", Where: key})
	}
}

// golden compares an output with the expected one in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("output differs (refresh with -update):\n%s", diff)
	}
}

// The outputs of the commands about several clusters.
func TestMeshOutputs(t *testing.T) {
	down := func(a *meshAPI) {
		a.mesh.Clusters[1].Connected, a.mesh.Clusters[1].Reachable, a.mesh.Clusters[1].LastSeen = false, false, noon.Add(-5*time.Minute)
		a.gns.Status.Conditions = []metav1.Condition{{Type: objects.ConditionAccepted, Status: metav1.ConditionFalse, Message: "ads is in two namespaces:\nads and more"}}
		a.replicas[0].Ready = false
		a.mesh.Clusters[1].Exports[0].Groups = nil
	}
	member := func(a *meshAPI) {
		a.mesh.Cluster, a.mesh.PrimaryAddress, a.mesh.Connected, a.mesh.Problem = "cluster2", "198.18.0.2:15443", false, "connection refused"
		a.mesh.Advertise, a.mesh.IssuerExpires = "", noon.Add(-time.Minute)
		a.mesh.Clusters[0].Self, a.mesh.Clusters[1].Self = false, true
		a.mesh.Clusters[0].Gateways, a.mesh.Clusters[0].Reachable = nil, false
	}
	refused := func(a *meshAPI) {
		a.refuse = &client.Problem{Status: http.StatusForbidden, What: "GlobalNamespace/boutique belongs to the primary cluster1", Remedy: "use --cluster cluster1"}
	}
	for name, c := range map[string]struct {
		args   string
		change func(*meshAPI)
		code   int
	}{
		"cluster-list":            {args: "cluster list"},
		"cluster-list-wide":       {args: "cluster ls -o wide", change: down},
		"cluster-list-json":       {args: "cluster list -o json"},
		"cluster-list-bad-format": {args: "cluster list -o name", code: exitUsage},
		"cluster-status":          {args: "cluster status"},
		"cluster-status-down":     {args: "cluster status", change: down, code: exitError},
		"cluster-status-member":   {args: "cluster status", change: member, code: exitError},
		"cluster-status-alone":    {args: "cluster status", change: func(a *meshAPI) { a.mesh.Clusters = a.mesh.Clusters[:1] }},
		"cluster-status-removed": {args: "cluster status", code: exitError, change: func(a *meshAPI) {
			member(a)
			a.mesh.Clusters, a.mesh.Problem = a.mesh.Clusters[1:], "it was removed"
		}},
		"cluster-status-one":         {args: "cluster status cluster2"},
		"cluster-status-one-down":    {args: "cluster status cluster2", change: down, code: exitError},
		"cluster-status-self":        {args: "cluster status cluster1"},
		"cluster-status-unknown":     {args: "cluster status clutser2", code: exitError},
		"cluster-status-yaml":        {args: "cluster status cluster2 -o yaml"},
		"cluster-token":              {args: "cluster token"},
		"cluster-token-json":         {args: "cluster token --ttl 10m -o json"},
		"cluster-token-bad-ttl":      {args: "cluster token --ttl -1h", code: exitUsage},
		"cluster-token-member":       {args: "cluster token", change: refused, code: exitError},
		"cluster-join":               {args: "cluster join 198.18.0.2:15443 --token " + testToken},
		"cluster-join-without-token": {args: "cluster join 198.18.0.2:15443", code: exitUsage},
		"cluster-join-bad-token":     {args: "cluster join 198.18.0.2:15443 --token hdl1.x", code: exitError},
		"cluster-join-refused":       {args: "cluster join 198.18.0.2:15443 --token " + testToken, change: refused, code: exitError},
		"cluster-remove":             {args: "cluster remove cluster2"},
		"cluster-remove-unknown":     {args: "cluster remove cluster3", code: exitError},
		"cluster-remove-bad-name":    {args: "cluster remove Cluster_2", code: exitUsage},
		"cluster-rotate":             {args: "cluster rotate"},
		"ca-status":                  {args: "ca status"},
		"ca-status-changing":         {args: "ca status", change: changing},
		"ca-status-external": {args: "ca status", change: func(a *meshAPI) {
			a.authority.Elsewhere, a.authority.Above, a.authority.Requested = true, "CN=Corporate root", true
		}},
		"ca-status-json":       {args: "ca status -o json", change: changing},
		"ca-status-bad-format": {args: "ca status -o wide", code: exitUsage},
		"ca-rotate-in-time":    {args: "ca rotate --wait 1ns", change: changing, code: exitError},
		"ca-rotate-later":      {args: "ca rotate --wait 0", change: changing},
		"ca-csr":               {args: "ca csr"},
		"ca-install-without":   {args: "ca install", code: exitUsage},
		"ca-install-no-file":   {args: "ca install --cert /does/not/exist", code: exitError},
		"ca-abort":             {args: "ca abort"},
		"gns-create":           {args: "gns create boutique --domain acme.demo --map cluster1/shop --map cluster2/shop"},
		"gns-create-again":     {args: "gns create boutique --domain acme.demo --map cluster1/shop", change: func(a *meshAPI) { a.action = client.ActionUnchanged }},
		"gns-create-other":     {args: "gns create boutique --domain other.demo --map cluster1/shop", change: func(a *meshAPI) { a.action = client.ActionConfigured }, code: exitError},
		"gns-create-yaml": {args: "gns create boutique --domain acme.demo --map */shop --default-deny --no-failover --public frontend:8080=www.acme.demo --public ads=ads.acme.demo " +
			"--external rates=https://api.example.com:443 --external db=10.0.0.1:5432 --external db=10.0.0.2:5432 --external six=tls://[2001:db8::1]:99 --dry-run -o yaml"},
		"gns-create-without-domain":   {args: "gns create boutique --map cluster1/shop", code: exitUsage},
		"gns-create-without-map":      {args: "gns create boutique --domain acme.demo", code: exitUsage},
		"gns-create-bad-map":          {args: "gns create boutique --domain acme.demo --map shop", code: exitUsage},
		"gns-create-bad-external":     {args: "gns create boutique --domain acme.demo --map a/b --external x=host", code: exitUsage},
		"gns-create-bad-protocol":     {args: "gns create boutique --domain acme.demo --map a/b --external x=ftp://host:21", code: exitUsage},
		"gns-create-two-protocols":    {args: "gns create boutique --domain acme.demo --map a/b --external x=tcp://h:80 --external x=http://h:80", code: exitUsage},
		"gns-create-bad-public":       {args: "gns create boutique --domain acme.demo --map a/b --public frontend", code: exitUsage},
		"gns-create-on-member":        {args: "gns create boutique --domain acme.demo --map a/b", change: refused, code: exitError},
		"gns-get":                     {args: "gns get"},
		"gns-get-yaml":                {args: "gns get boutique -o yaml"},
		"gns-describe":                {args: "gns describe boutique"},
		"gns-describe-problems":       {args: "gns describe boutique", change: down},
		"gns-describe-unknown":        {args: "gns describe shop", code: exitError},
		"gns-delete":                  {args: "gns delete boutique"},
		"gns-delete-unknown":          {args: "gns delete shop", code: exitError},
		"gns-describe-outside-of-all": {args: "gns describe boutique", change: func(a *meshAPI) { outside(a.gns.Resource.(*v1alpha1.GlobalNamespace)) }},
	} {
		t.Run(name, func(t *testing.T) {
			a := healthyMesh()
			if c.change != nil {
				c.change(a)
			}
			got, code := run(t, a, "", strings.Fields(c.args)...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			golden(t, name, "$ heddle "+c.args+"\n"+got)
		})
	}
}

// outside gives a global namespace everything that leads in or out, and maps a cluster that has not joined.
func outside(g *v1alpha1.GlobalNamespace) {
	off := false
	g.Spec.DefaultDeny, g.Spec.Resilience.LocalityFailover = true, &off
	g.Spec.Mappings = []v1alpha1.NamespaceMapping{{Cluster: "cluster9", Namespace: "shop"}}
	g.Spec.ExternalServices = []v1alpha1.ExternalService{{Name: "rates", Hosts: []string{"api.example.com"}, Ports: []v1alpha1.ExternalPort{{Port: 80, TargetPort: 443, TLS: true}}}}
	g.Spec.PublicServices = []v1alpha1.PublicService{{Service: "frontend", Host: "www.acme.demo"}, {Service: "ads", Host: "ads.acme.demo", CredentialName: "c"}}
}

func TestMeshRequests(t *testing.T) {
	a := healthyMesh()
	for _, args := range []string{"cluster token --ttl 90m", "cluster join host:1 --token " + testToken, "cluster remove cluster2", "gns delete boutique",
		"gns create x --domain d.e --map a/b"} {
		if got, code := run(t, a, "", strings.Fields(args)...); code != 0 {
			t.Fatal(got)
		}
	}
	if len(a.tokens) != 1 || a.tokens[0].TTL != 90*time.Minute {
		t.Errorf("tokens: %v", a.tokens)
	}
	if len(a.joins) != 1 || a.joins[0] != (client.JoinRequest{Address: "host:1", Token: testToken}) {
		t.Errorf("joins: %v", a.joins)
	}
	if want := []string{"/apis/heddle.io/v1alpha1/clusters/cluster2", "/apis/heddle.io/v1alpha1/globalnamespaces/boutique"}; !cmp.Equal(a.deleted, want) {
		t.Errorf("deleted: %v", a.deleted)
	}
	if len(a.applied) != 2 || !a.applied[0].DryRun || a.applied[1].DryRun {
		t.Fatalf("applied: %+v", a.applied)
	}
	// What is sent must be a manifest that the server accepts.
	made, errs := objects.Decode(strings.NewReader(a.applied[1].Manifests[0].Content), "x", "")
	if len(errs) > 0 || len(made) != 1 || made[0].GetName() != "x" {
		t.Errorf("%v, %v", made, errs)
	}
}

func TestDryRunMakesNoGlobalNamespace(t *testing.T) {
	a := healthyMesh()
	if got, code := run(t, a, "", strings.Fields("gns create x --domain d.e --map a/b --dry-run")...); code != 0 || !strings.Contains(got, "(dry run)") {
		t.Errorf("%d: %s", code, got)
	}
	if len(a.applied) != 1 || !a.applied[0].DryRun {
		t.Errorf("applied: %+v", a.applied)
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{time.Hour: "1h", 10 * time.Minute: "10m", 90 * time.Minute: "1h30m", 45 * time.Second: "45s", time.Hour - time.Millisecond: "1h", 0: "0s"} {
		if got := duration(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}
