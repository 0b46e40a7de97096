package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/objects"
)

func workload() *v1alpha1.Workload {
	two, cpu := int32(2), resource.MustParse("250m")
	return &v1alpha1.Workload{
		ObjectMeta: metav1.ObjectMeta{Name: "cart", Namespace: "shop", Labels: map[string]string{"app": "cart"}, Annotations: map[string]string{}},
		Spec:       v1alpha1.WorkloadSpec{Replicas: &two, Command: []string{"boutique"}, Args: []string{"cart"}, Resources: v1alpha1.Resources{CPU: &cpu}},
	}
}

func TestReplicasOfAWorkload(t *testing.T) {
	specs := replicas(workload(), "cluster1", false, nil)
	if len(specs) != 2 || specs[1].Name != "cart-1" || specs[0].ServiceAccount != "default" || specs[0].Limits.MilliCPU != 250 ||
		strings.Join(specs[0].Command, " ") != "boutique cart" {
		t.Fatalf("%+v", specs)
	}
	elsewhere := workload()
	elsewhere.Spec.Cluster = "cluster2"
	stopped := workload()
	stopped.Annotations[AnnotationStopped] = "true"
	for name, w := range map[string]*v1alpha1.Workload{"elsewhere": elsewhere, "stopped": stopped} {
		if got := replicas(w, "cluster1", false, nil); len(got) != 0 {
			t.Errorf("%s: %d replicas", name, len(got))
		}
	}
}

func TestHashChangesWithWhatMatters(t *testing.T) {
	base := replicas(workload(), "c", false, nil)[0].hash()
	if again := replicas(workload(), "c", false, nil)[0].hash(); again != base {
		t.Fatal("the same workload hashes differently")
	}
	for name, change := range map[string]func(*v1alpha1.Workload){
		"args":    func(w *v1alpha1.Workload) { w.Spec.Args = []string{"other"} },
		"env":     func(w *v1alpha1.Workload) { w.Spec.Env = []v1alpha1.EnvVar{{Name: "A", Value: "1"}} },
		"labels":  func(w *v1alpha1.Workload) { w.Labels["version"] = "v2" },
		"restart": func(w *v1alpha1.Workload) { w.Annotations[AnnotationRestarted] = "now" },
		"bypass":  func(w *v1alpha1.Workload) { w.Annotations[AnnotationTCPBypass] = "off" },
		"capture": func(w *v1alpha1.Workload) { w.Annotations[AnnotationCapture] = "ebpf" },
		"proxy":   func(w *v1alpha1.Workload) { w.Annotations[AnnotationProxyPath] = "/usr/bin/envoy" },
	} {
		w := workload()
		change(w)
		if replicas(w, "c", false, nil)[0].hash() == base {
			t.Errorf("%s does not change the hash", name)
		}
	}
	// A proxy is told with its certificate who uses its keys.
	keys := workload()
	keys.Annotations[objects.AnnotationProxyConfig] = "privateKeyProvider: {cryptomb: {pollDelay: 0.01s}}"
	mesh := &objects.KeyProvider{PollDelay: time.Millisecond}
	if replicas(keys, "c", false, nil)[0].hash() != base || replicas(workload(), "c", false, mesh)[0].hash() != base {
		t.Error("another key provider would replace running replicas")
	}
	scaled := workload()
	three := int32(3)
	scaled.Spec.Replicas = &three
	if replicas(scaled, "c", false, nil)[0].hash() != base {
		t.Error("scaling would replace running replicas")
	}
}

func TestAccountsThatBypassTheMeshAreRefused(t *testing.T) {
	if who, err := account("root"); err != nil || who.uid != 0 {
		t.Errorf("root: %+v %v", who, err)
	}
	for name, want := range map[string]string{"1879048192": "bypasses the mesh", "no-such-user-here": "does not exist"} {
		if _, err := account(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestThresholds(t *testing.T) {
	state := newThresholds(&v1alpha1.Readiness{SuccessThreshold: 2, FailureThreshold: 3})
	for i, step := range []struct{ ok, want bool }{
		{true, false}, {false, false}, {true, false}, {true, true}, {false, true}, {false, true}, {true, true},
		{false, true}, {false, true}, {false, false}, {true, false}, {true, true},
	} {
		if got := state.add(step.ok); got != step.want {
			t.Fatalf("step %d: %v", i, got)
		}
	}
}

func TestBackoffGrowsAndResets(t *testing.T) {
	var b backoff
	want := firstPause
	for range 12 {
		if got := b.next(time.Second); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		want = min(2*want, lastPause)
	}
	if got := b.next(stableTime); got != firstPause {
		t.Fatalf("after a stable run: %s", got)
	}
}

// What an application answers to a probe is shown to people: it is short, and writes nothing on their terminals.
func TestWordsOfAHostileApplicationAreClipped(t *testing.T) {
	const cruel = "\x1b[2J\x1b]0;all is well\a"
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	go func() {
		for {
			c, err := plain.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1<<10))
			_, _ = fmt.Fprintf(c, "HTTP/1.1 503 %s\r\nContent-Length: 0\r\n\r\n", strings.Repeat(cruel, 500))
			c.Close()
		}
	}()
	called, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		return status.Error(codes.Internal, strings.Repeat(cruel+"\n", 500))
	}))
	defer server.Stop()
	go func() { _ = server.Serve(called) }()
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	r := crowd(t, 1).all()[0]
	for what, said := range map[string]error{"HTTP": probeHTTP(t.Context(), dial, plain.Addr().String(), "/"), "gRPC": probeGRPC(t.Context(), dial, called.Addr().String(), "")} {
		if said == nil {
			t.Fatalf("%s: the probe succeeded", what)
		}
		r.set(func() { r.message = "not ready: " + said.Error() })
		if got := r.report().State.Message; len([]rune(got)) > maxMessage+1 || strings.ContainsAny(got, "\x1b\a\n") || !strings.Contains(got, "all is well") {
			t.Errorf("%s: shown are %d bytes: %.80q", what, len(got), got)
		}
	}
}

func TestProbes(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/bad":
			w.WriteHeader(http.StatusInternalServerError)
		case "/moved":
			http.Redirect(w, r, "/bad", http.StatusFound)
		}
	}))
	defer web.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, status := grpc.NewServer(), health.NewServer()
	healthv1.RegisterHealthServer(server, status)
	status.SetServingStatus("down", healthv1.HealthCheckResponse_NOT_SERVING)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	port := func(a net.Addr) int32 {
		tcp, ok := a.(*net.TCPAddr)
		if !ok {
			t.Fatal("not TCP")
		}
		return int32(tcp.Port)
	}
	h, g, c := port(web.Listener.Addr()), port(listener.Addr()), port(closed.Addr())
	for name, test := range map[string]struct {
		readiness *v1alpha1.Readiness
		want      string
	}{
		"none":            {nil, ""},
		"tcp":             {&v1alpha1.Readiness{TCP: &v1alpha1.TCPProbe{Port: h}}, ""},
		"tcp closed":      {&v1alpha1.Readiness{TCP: &v1alpha1.TCPProbe{Port: c}}, "refused"},
		"http":            {&v1alpha1.Readiness{HTTP: &v1alpha1.HTTPProbe{Port: h}}, ""},
		"http redirect":   {&v1alpha1.Readiness{HTTP: &v1alpha1.HTTPProbe{Port: h, Path: "/moved"}}, ""},
		"http error":      {&v1alpha1.Readiness{HTTP: &v1alpha1.HTTPProbe{Port: h, Path: "/bad"}}, "500"},
		"grpc":            {&v1alpha1.Readiness{GRPC: &v1alpha1.GRPCProbe{Port: g}}, ""},
		"grpc down":       {&v1alpha1.Readiness{GRPC: &v1alpha1.GRPCProbe{Port: g, Service: "down"}}, "NOT_SERVING"},
		"grpc on http":    {&v1alpha1.Readiness{GRPC: &v1alpha1.GRPCProbe{Port: h}}, "rpc error"},
		"no probe chosen": {&v1alpha1.Readiness{}, "names no probe"},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := probe(ctx, (&net.Dialer{}).DialContext, netip.MustParseAddr("127.0.0.1"), test.readiness)
		cancel()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNodeID(t *testing.T) {
	p := Proxy{Namespace: "shop", Name: "cart-0", Address: netip.MustParseAddr("10.244.0.7")}
	if got, want := p.NodeID(), "sidecar~10.244.0.7~cart-0.shop~shop.svc.cluster.local"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	p.Gateway = true
	if !strings.HasPrefix(p.NodeID(), "router~") {
		t.Error(fmt.Sprint(p.NodeID()))
	}
}

// A replica is found by its name, a gateway's too, and no other one.
func TestFind(t *testing.T) {
	a := &Agent{deployments: map[string]*deployment{}}
	for key, specs := range map[string][]replicaSpec{
		"shop/cart":     {{Namespace: "shop", Name: "cart-0"}, {Namespace: "shop", Name: "cart-12"}},
		"shop/cart-api": {{Namespace: "shop", Name: "cart-api-0"}},
		ingressKey:      ingress.replicas(1, "", nil),
		eastWestKey:     eastWest.replicas(2, "", nil),
	} {
		d := &deployment{running: map[string]*replica{}}
		for _, s := range specs {
			d.running[s.Name] = &replica{spec: s}
		}
		a.deployments[key] = d
	}
	for _, r := range a.all() {
		if found := a.find(r.spec.Namespace, r.spec.Name); found != r {
			t.Errorf("%s: %v", r.spec.key(), found)
		}
	}
	gateway := ingress.replicas(1, "", nil)[0]
	for _, other := range [][2]string{{"shop", "cart-1"}, {"shop", "cart"}, {"shop", ""}, {"", "cart-0"}, {"other", "cart-0"}, {"shop", gateway.Name}, {gateway.Namespace, "cart-0"}} {
		if found := a.find(other[0], other[1]); found != nil {
			t.Errorf("%v: %s", other, found.spec.key())
		}
	}
}

// A program that is hidden is refused before it is started, with the option that it comes from; a key that cannot be hidden is told of.
func TestProgramsBesideSecrets(t *testing.T) {
	a := newAgent(t)
	root := t.TempDir()
	program := filepath.Join(root, "bin", "program")
	if err := errors.Join(os.Mkdir(filepath.Dir(program), 0o755), os.WriteFile(program, nil, 0o755)); err != nil {
		t.Fatal(err)
	}
	a.options.SecretsKeyFile = filepath.Join(root, "secrets.key")
	spec := replicas(workload(), "c", false, nil)[0]
	spec.Command, spec.ProxyPath = []string{program}, program
	r := a.newReplica(spec)
	if _, err := r.startApp(); err == nil || !strings.Contains(err.Error(), "spec.command: program "+program+" is in "+root) {
		t.Error(err)
	}
	if _, err := r.startProxy(); err == nil || !strings.Contains(err.Error(), AnnotationProxyPath+": program "+program) {
		t.Error(err)
	}
	if checks := a.check(t.Context()); len(checks) != 0 {
		t.Errorf("%+v", checks)
	}
	a.config.Proxy = program
	if checks := a.check(t.Context()); len(checks) != 1 || checks[0].Name != "secrets-hidden" || checks[0].OK || !strings.Contains(checks[0].Detail, "--secrets-key-file") {
		t.Errorf("%+v", checks)
	}
}
