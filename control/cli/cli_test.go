package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/server/client"
)

var update = flag.Bool("update", false, "write the expected outputs anew")

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// api answers with fixed content, and remembers what it was asked.
type api struct {
	applied []client.ApplyRequest
	put     []*objects.Object
	refuse  *client.Problem
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	send := func(value any) { _ = json.NewEncoder(w).Encode(value) }
	if a.refuse != nil {
		w.WriteHeader(a.refuse.Status)
		send(a.refuse)
		return
	}
	service := &objects.Object{Kind: objects.Service, Version: "7", Origin: objects.Origin{File: "shop.yaml", Line: 3, User: "me"},
		Resource: &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
			ObjectMeta: metav1.ObjectMeta{Name: "cart", Namespace: "shop", Labels: map[string]string{"app": "cart"}, CreationTimestamp: metav1.NewTime(noon.Add(-90 * time.Minute))},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.1.2", Selector: map[string]string{"app": "cart"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}},
		Status: objects.Status{Proxies: 2, Conditions: []metav1.Condition{{Type: "Accepted", Status: "True", Reason: "Accepted", Message: "in force", LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour))}}}}
	workload := &objects.Object{Kind: objects.Workload, Version: "8", Resource: &v1alpha1.Workload{
		TypeMeta:   metav1.TypeMeta{APIVersion: "heddle.io/v1alpha1", Kind: "Workload"},
		ObjectMeta: metav1.ObjectMeta{Name: "cart", Namespace: "shop", CreationTimestamp: metav1.NewTime(noon.Add(-5 * time.Minute))},
		Spec:       v1alpha1.WorkloadSpec{Command: []string{"boutique", "cart"}, ServiceAccount: "cart"}},
		Status: objects.Status{Workload: &objects.WorkloadState{Replicas: []objects.ReplicaState{{Name: "cart-0", Phase: "Ready", Address: "10.244.0.5", Restarts: 1}}}}}
	switch key := r.Method + " " + r.URL.Path; key {
	case "GET /api/v1/services", "GET /api/v1/namespaces/shop/services":
		send(client.List{Items: []*objects.Object{service}, Position: "9"})
	case "GET /api/v1/namespaces/shop/services/cart":
		send(service)
	case "GET /api/v1/namespaces/empty/services":
		send(client.List{Position: "9"})
	case "GET /apis/heddle.io/v1alpha1/namespaces/shop/workloads":
		send(client.List{Items: []*objects.Object{workload}, Position: "9"})
	case "GET /apis/heddle.io/v1alpha1/namespaces/shop/workloads/cart":
		send(workload)
	case "PUT /apis/heddle.io/v1alpha1/namespaces/shop/workloads/cart":
		o := &objects.Object{}
		if err := json.NewDecoder(r.Body).Decode(o); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a.put = append(a.put, o)
		send(client.Result{Key: o.Key(), Action: client.ActionConfigured})
	case "POST /heddle/v1/apply":
		var request client.ApplyRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a.applied = append(a.applied, request)
		send(client.ApplyResponse{DryRun: request.DryRun, Results: []client.Result{
			{Key: service.Key(), Action: client.ActionCreated, Warnings: []string{"spec.externalIPs: has no effect"}},
			{Key: workload.Key(), Action: client.ActionUnchanged}}})
	case "DELETE /api/v1/namespaces/shop/services/cart":
		send(client.Result{Key: service.Key(), Action: client.ActionDeleted})
	case "GET /heddle/v1/replicas":
		send([]client.Replica{{Namespace: "shop", Workload: "cart", ServiceAccount: "cart", NodeID: "n", Ready: true, CertificateExpires: noon.Add(time.Hour),
			State: objects.ReplicaState{Name: "cart-0", Phase: "Ready", Address: "10.244.0.5", PID: 41, ProxyPID: 42, Started: noon.Add(-3 * time.Minute)}}})
	case "GET /heddle/v1/proxies":
		send([]client.ProxyStatus{{Name: "cart-0", Namespace: "shop", Type: "sidecar", Connected: true, Since: noon.Add(-3 * time.Minute),
			Types: map[string]string{"CDS": "SYNCED", "LDS": "NACK", "EDS": "SYNCED", "RDS": "STALE"}, Behind: 41, Errors: map[string]string{"LDS": "listener x: no"}}})
	case "PUT /apis/heddle.io/v1alpha1/accessbindings/editor.user.alice.in.shop":
		o := &objects.Object{}
		if err := json.NewDecoder(r.Body).Decode(o); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a.put = append(a.put, o)
		send(client.Result{Key: o.Key(), Action: client.ActionCreated})
	case "DELETE /apis/heddle.io/v1alpha1/accessbindings/editor.user.alice.in.shop":
		send(client.Result{})
	case "GET /apis/heddle.io/v1alpha1/accessbindings":
		send(client.List{Items: []*objects.Object{{Kind: objects.AccessBinding, Resource: &v1alpha1.AccessBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: "heddle.io/v1alpha1", Kind: "AccessBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: "team", CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))},
			Spec: v1alpha1.AccessBindingSpec{Role: "editor", Namespaces: []string{"shop", "bank"}, Subjects: []v1alpha1.AccessSubject{
				{Kind: "Group", Name: "developers"}, {Kind: "ServiceAccount", Namespace: "ci", Name: "deployer"}}}}}}})
	case "GET /heddle/v1/ca":
		send(client.APIServer{Cluster: "shop-cluster", ServerName: "api.shop-cluster.clusters.cluster.local", Roots: "PEM\n", Address: netip.MustParseAddrPort("192.0.2.10:6443")})
	case "GET /heddle/v1/whoami":
		send(client.Who{Caller: "user alice", From: "unix pid 7", Grants: []client.Grant{{Role: "editor", Namespace: "shop"}}})
	case "POST /heddle/v1/tokens":
		var request client.APITokenRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		send(client.APITokenResponse{Token: "hda1.0123456789abcdef.secret", APIToken: client.APIToken{ID: "0123456789abcdef", Role: request.Role, Namespace: request.Namespace,
			Note: request.Note, Made: noon, Expires: noon.Add(request.TTL)}})
	case "GET /heddle/v1/tokens":
		send([]client.APIToken{{ID: "0123456789abcdef", Note: "pipeline", Role: "editor", Namespace: "shop", MadeBy: "user root", Made: noon, Expires: noon.Add(time.Hour)},
			{ID: "fedcba9876543210", Role: "viewer", Namespace: "*", MadeBy: "user alice", Made: noon, Expires: noon.Add(-time.Minute)}})
	case "DELETE /heddle/v1/tokens/0123456789abcdef":
		send(client.APIToken{})
	case "GET /heddle/v1/audit":
		_, _ = w.Write([]byte(`{"time":"2030-01-01T11:59:00Z","id":"A","who":"user root","from":"unix pid 7","for":"alice","action":"apply","objects":[{"name":"Service/shop/cart","action":"created"}],"result":"begun"}` + "\n" +
			`{"time":"2030-01-01T11:59:01Z","id":"A","who":"user root","from":"unix pid 7","for":"alice","action":"apply","detail":"revision 7","result":"done"}` + "\n" +
			`{"time":"2030-01-01T11:59:02Z","id":"B","who":"unknown","from":"192.0.2.7:4711","action":"` + r.URL.RawQuery + `","result":"refused","why":"the token is not known","unrecorded":3}` + "\n"))
	case "GET /heddle/v1/secrets":
		send(seal.Status{File: "/var/lib/heddle/test/store/secrets.key", Command: "/usr/local/bin/kms", Secrets: 4, Unsealed: 1, Rotating: true, Keys: []seal.KeyStatus{
			{ID: "3f2a91c0", Created: noon.Add(-72 * time.Hour), Secrets: 2},
			{ID: "77aa0012", Created: noon.Add(-time.Minute), Secrets: 1, Primary: true, Command: "/usr/local/bin/kms", Problem: "KMS command /usr/local/bin/kms unwrap: no answer within 10s"}},
			Unreadable: []seal.Unreadable{{Secret: "Secret/shop/tls", Why: "the Secret cannot be decrypted: its key 77aa0012 is not to be had"}}})
	case "POST /heddle/v1/secrets/rotate":
		send(seal.Status{File: "/var/lib/heddle/test/store/secrets.key", Secrets: 4, Keys: []seal.KeyStatus{{ID: "1c0ffee1", Created: noon, Secrets: 4, Primary: true}}})
	case "GET /heddle/v1/logs/shop/cart-0/app":
		_, _ = w.Write([]byte("line one\nline two\n"))
	case "GET /heddle/v1/proxies/n/config":
		_, _ = w.Write([]byte(`{"CDS":[{"name":"outbound|80||cart.shop.svc.cluster.local","type":"EDS"}],"EDS":[{"clusterName":"outbound|80||cart.shop.svc.cluster.local","endpoints":[{"lbEndpoints":[{"endpoint":{"address":{"socketAddress":{"address":"10.244.0.5","portValue":80}}}}]}]}],"LDS":[{"name":"virtualInbound","address":{"socketAddress":{"address":"0.0.0.0","portValue":15006}}}]}`))
	default:
		w.WriteHeader(http.StatusNotFound)
		send(client.Problem{What: "not found", Where: key})
	}
}

// run runs a command line against the API and gives its output and exit code as one text.
func run(t *testing.T, a http.Handler, stdin string, args ...string) (string, int) {
	t.Helper()
	return runAs(t, a, stdin, append(args, "--cluster", "test")...)
}

// runAs is run without a cluster in the command line.
func runAs(t *testing.T, a http.Handler, stdin string, args ...string) (string, int) {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, "api.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: a, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	var out, errs bytes.Buffer
	s := &session{in: strings.NewReader(stdin), out: &out, err: &errs, contexts: contextFile{path: filepath.Join(dir, "config.yaml")},
		connect: func(string) *client.Client { return client.New(socket) }, now: func() time.Time { return noon }}
	code := s.main(context.Background(), args)
	text := out.String()
	if errs.Len() > 0 {
		text += "--- stderr\n" + errs.String()
	}
	return text, code
}

func TestOutputs(t *testing.T) {
	for name, c := range map[string]struct {
		args  string
		stdin string
		code  int
	}{
		"get-services":            {args: "get services -n shop"},
		"get-services-all-wide":   {args: "get svc -A -o wide"},
		"get-service-yaml":        {args: "get svc cart -n shop -o yaml"},
		"get-services-json":       {args: "get services -n shop -o json"},
		"get-names":               {args: "get svc,wl -n shop -o name"},
		"get-several-kinds":       {args: "get svc,wl -n shop"},
		"get-selector-none":       {args: "get svc -n shop -l app=other"},
		"get-nothing":             {args: "get svc -n empty"},
		"get-workloads-wide":      {args: "get workloads -n shop -o wide"},
		"get-unknown-kind":        {args: "get servcies -n shop", code: exitUsage},
		"get-unknown-output":      {args: "get svc -o table", code: exitUsage},
		"get-missing":             {args: "get svc none -n shop", code: exitError},
		"describe-service":        {args: "describe svc cart -n shop"},
		"describe-workload":       {args: "describe wl/cart -n shop"},
		"apply-stdin":             {args: "apply -f - -n shop", stdin: "x"},
		"apply-dry-run":           {args: "apply -f - --dry-run", stdin: "x"},
		"apply-without-file":      {args: "apply", code: exitUsage},
		"apply-missing-file":      {args: "apply -f /does/not/exist.yaml", code: exitError},
		"apply-unknown-flag":      {args: "apply --fiel x", code: exitUsage},
		"delete-by-name":          {args: "delete svc cart -n shop"},
		"delete-by-slash":         {args: "delete svc/cart -n shop"},
		"delete-missing":          {args: "delete svc none -n shop", code: exitError},
		"delete-ignore-not-found": {args: "delete svc none -n shop --ignore-not-found"},
		"ps":                      {args: "ps"},
		"ps-wide":                 {args: "ps -o wide"},
		"logs":                    {args: "logs cart -n shop"},
		"logs-other-namespace":    {args: "logs cart", code: exitError},
		"logs-nothing":            {args: "logs", code: exitUsage},
		"proxy-status":            {args: "proxy status"},
		"proxy-config":            {args: "proxy config cart -n shop"},
		"proxy-config-clusters":   {args: "proxy config shop/cart-0 clusters"},
		"proxy-config-bad-part":   {args: "proxy config cart -n shop rotues", code: exitUsage},
		"stop":                    {args: "stop cart -n shop"},
		"start-not-stopped":       {args: "start cart -n shop"},
		"access-grant":            {args: "access grant editor --user alice -n shop"},
		"access-grant-nowhere":    {args: "access grant editor --user alice", code: exitUsage},
		"access-grant-nobody":     {args: "access grant editor -A", code: exitUsage},
		"access-grant-no-role":    {args: "access grant king --user alice -A", code: exitUsage},
		"access-revoke":           {args: "access revoke editor --user alice -n shop"},
		"access-revoke-missing":   {args: "access revoke viewer --user alice -n shop", code: exitError},
		"access-list":             {args: "access list"},
		"access-whoami":           {args: "access whoami"},
		"context-ca":              {args: "context ca"},
		"context-add-nobody":      {args: "context add far --server 192.0.2.10:6443 --ca-file x", code: exitUsage},
		"context-add-nowhere":     {args: "context add far --token x", code: exitUsage},
		"token-create":            {args: "token create --role editor -n shop --name pipeline --ttl 1h"},
		"token-create-nowhere":    {args: "token create --role editor", code: exitUsage},
		"token-list":              {args: "token list"},
		"token-revoke":            {args: "token revoke 0123456789abcdef"},
		"token-revoke-missing":    {args: "token revoke fedcba9876543210", code: exitError},
		"secrets-status":          {args: "secrets status", code: exitError},
		"secrets-status-json":     {args: "secrets status -o json", code: exitError},
		"secrets-rotate":          {args: "secrets rotate"},
		"audit":                   {args: "audit --who root --since 1h"},
		"audit-json":              {args: "audit --refused --limit 7 -o json"},
		"audit-bad-since":         {args: "audit --since yesterday", code: exitUsage},
		"unknown-command":         {args: "aply", code: exitUsage},
		"bad-cluster-name":        {args: "up --name Shop_1", code: exitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			got, code := run(t, &api{}, c.stdin, strings.Fields(c.args)...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			got = "$ heddle " + c.args + "\n" + got
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
		})
	}
}

func TestProblemsArePrintedWhole(t *testing.T) {
	a := &api{refuse: &client.Problem{Status: http.StatusUnprocessableEntity, What: "nothing was changed: 1 error", Remedy: "correct it and try again",
		Errors: []objects.Error{{File: "shop.yaml", Line: 4, Object: objects.Key{Kind: "Service", Namespace: "shop", Name: "cart"}, Path: "spec.prots", Problem: "unknown field", Remedy: `did you mean "ports"?`}}}}
	got, code := run(t, a, "x", "apply", "-f", "-")
	want := "--- stderr\nerror: nothing was changed: 1 error\n" +
		"  shop.yaml:4: Service/shop/cart: spec.prots: unknown field; did you mean \"ports\"?\n  remedy: correct it and try again\n"
	if code != exitError || got != want {
		t.Fatalf("%d\n%s", code, got)
	}
}

func TestApplyReadsDirectoriesInOrder(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.yaml", "a.yml", "c.json", "notes.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "deep", "d.yaml"), []byte("d"), 0o644); err != nil {
		t.Fatal(err)
	}
	names := func(recursive bool) string {
		manifests, err := readManifests([]string{dir}, recursive, nil)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, m := range manifests {
			out = append(out, filepath.Base(m.File))
		}
		return strings.Join(out, " ")
	}
	if got := names(false); got != "a.yml b.yaml c.json" {
		t.Error(got)
	}
	if got := names(true); got != "a.yml b.yaml c.json d.yaml" {
		t.Error(got)
	}
	if _, err := readManifests([]string{t.TempDir()}, false, nil); err == nil || !strings.Contains(err.Error(), "holds no manifests") {
		t.Error(err)
	}
}

func TestStopMarksTheWorkload(t *testing.T) {
	a := &api{}
	if got, code := run(t, a, "", "stop", "cart", "-n", "shop"); code != 0 {
		t.Fatal(got)
	}
	if len(a.put) != 1 || a.put[0].GetAnnotations()[agent.AnnotationStopped] != "true" || a.put[0].Version != "8" {
		t.Fatalf("%+v", a.put)
	}
}

func TestContextChoice(t *testing.T) {
	f := contextFile{path: filepath.Join(t.TempDir(), "heddle", "config.yaml")}
	if err := f.write(contextContent{Current: "kept"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ flag, environment, want string }{{"flag", "env", "flag"}, {"", "env", "env"}, {"", "", "kept"}} {
		if got, err := f.choose(c.flag, c.environment); err != nil || got != c.want {
			t.Errorf("%+v: %s %v", c, got, err)
		}
	}
	if err := os.WriteFile(f.path, []byte("cluster: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.choose("", ""); err == nil || !strings.Contains(err.Error(), f.path) {
		t.Errorf("a broken context file: %v", err)
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{5 * time.Second: "5s", 150 * time.Second: "2m30s", 45 * time.Minute: "45m", 5 * time.Hour: "5h", 72 * time.Hour: "3d", -time.Second: "0s"} {
		if got := age(noon.Add(-d), noon); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}
