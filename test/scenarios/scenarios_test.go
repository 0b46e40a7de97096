// Package scenarios holds the golden scenarios: what a user applies, and all that must come of it.
package scenarios

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/translate"
)

var update = flag.Bool("update", false, "write the expected files anew")

// minimum of scenarios that must exist, so that none disappears unnoticed.
const minimum = 170

// scenario is what came of one folder.
type scenario struct {
	name string
	// errors when the batch is refused; then nothing else is set.
	errors []error
	mesh   *model.Mesh
	report *resolve.Report
	nodes  []translate.Node
}

func load(t *testing.T, name string) *scenario {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(name, "in.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s := &scenario{name: name}
	world := readWorld(t, name)
	settings := world.settings(t)
	objs, errs := objects.Decode(bytes.NewReader(text), "in.yaml", "")
	if len(errs) > 0 {
		s.errors = errs
		return s
	}
	var writes []store.Write
	for _, o := range objs {
		writes = append(writes, store.Write{Key: o.Key(), Object: o})
	}
	existing := []*objects.Object{namespace("default"), namespace(settings.RootNamespace)}
	writes, errs = resolve.Check(settings, existing, writes)
	if len(errs) > 0 {
		s.errors = errs
		return s
	}
	all := resolve.Merge(existing, writes)
	replicas := instances(all, settings, world.NotReady)
	s.mesh, s.report = resolve.Mesh(settings, all, resolve.Runtime{
		Instances: replicas, Peers: world.Peers, Addresses: addresses(settings, all, world.Peers),
	})
	s.nodes = nodes(t, string(text), settings, replicas)
	return s
}

func namespace(name string) *objects.Object {
	ns := &corev1.Namespace{}
	ns.Name = name
	return &objects.Object{Kind: objects.Namespace, Resource: ns}
}

// instances takes every workload's replicas as running, and as ready unless they are listed.
func instances(objs []*objects.Object, settings model.Settings, notReady []string) []registry.Instance {
	var out []registry.Instance
	address := settings.Family.Ranges().Pods.Addr()
	for range 10 {
		address = address.Next()
	}
	for _, o := range objs {
		w, ok := o.Resource.(*v1alpha1.Workload)
		if !ok {
			continue
		}
		for i := range w.ReplicaCount() {
			instance := registry.Instance{
				Workload: o.Key(), Name: fmt.Sprintf("%s-%d", w.Name, i), Address: address, Labels: w.Labels,
				ServiceAccount: w.Spec.ServiceAccount, Cluster: settings.Cluster, HasProxy: true,
			}
			instance.Ready = !slices.Contains(notReady, instance.ID())
			for _, p := range w.Spec.Ports {
				instance.Ports = append(instance.Ports, registry.Port{Name: p.Name, Number: uint16(p.Port)})
			}
			out = append(out, instance)
			address = address.Next()
		}
	}
	return out
}

// stock marks a node that runs a stock Envoy; others run heddle-proxy.
const stock = " (stock)"

// nodes reads the first line of the input.
func nodes(t *testing.T, text string, settings model.Settings, replicas []registry.Instance) []translate.Node {
	t.Helper()
	line, _, _ := strings.Cut(text, "\n")
	list, ok := strings.CutPrefix(line, "# nodes: ")
	if !ok {
		t.Fatalf("the first line %q does not name the nodes", line)
	}
	var out []translate.Node
	for _, full := range strings.Split(list, ",") {
		full, isStock := strings.CutSuffix(strings.TrimSpace(full), stock)
		ns, name, _ := strings.Cut(full, "/")
		node := translate.Node{
			Type: translate.Sidecar, Namespace: ns, Name: name, Domain: settings.Domain, Cluster: settings.Cluster,
			TrustDomain: settings.TrustDomain, Heddle: !isStock, Version: translate.IstioVersion,
		}
		if full := ns + "/" + name; full == "istio-system/ingressgateway" || full == "istio-system/eastwestgateway" {
			node.Type, node.Workload, node.Account = translate.Router, "istio-"+name, "istio-"+name
			node.Address = settings.Family.Ranges().Gateway().Addr().Next()
			node.Labels = map[string]string{"app": "istio-" + name, "istio": name}
			out = append(out, node)
			continue
		}
		found := false
		for _, r := range replicas {
			if r.Namespace() == ns && r.Name == name {
				node.Address, node.Labels, node.Account = r.Address, r.Labels, r.ServiceAccount
				node.Workload, found = r.Workload.Name, true
			}
		}
		if !found {
			t.Fatalf("no workload has the replica %s/%s", ns, name)
		}
		out = append(out, node)
	}
	return out
}

// files are the expected files and what they must hold.
func (s *scenario) files(t *testing.T) map[string][]byte {
	t.Helper()
	if len(s.errors) > 0 {
		lines := make([]string, 0, len(s.errors))
		for _, err := range s.errors {
			lines = append(lines, err.Error())
		}
		return map[string][]byte{"status.yaml": toYAML(t, map[string]any{"errors": lines})}
	}
	return map[string][]byte{
		"model.yaml":  toYAML(t, s.mesh),
		"status.yaml": toYAML(t, s.statuses(t)),
		"xds.yaml":    toYAML(t, s.xds(t)),
	}
}

func (s *scenario) statuses(t *testing.T) map[string]any {
	t.Helper()
	out := map[string]any{}
	for _, key := range s.report.Keys() {
		out[key.String()] = s.report.Status(key)
	}
	all := map[string]any{"objects": out}
	if len(s.mesh.EnvoyFilters) > 0 {
		all["patches"] = s.patches(t)
	}
	return all
}

// patches says of each proxy how many resources each patch changes, and which are left out.
func (s *scenario) patches(t *testing.T) map[string]any {
	t.Helper()
	out := map[string]any{}
	for _, node := range s.nodes {
		r, err := translate.Proxy(s.mesh, node)
		if err != nil {
			t.Fatal(err)
		}
		of := map[string]any{}
		for _, p := range r.Patches() {
			one := map[string]any{"changed": p.Changed}
			if len(p.Broken) > 0 {
				one["leftOut"] = p.Broken
			}
			of[p.Patch.Source.Key.String()+" "+p.Patch.Source.Path] = one
		}
		out[node.ID()] = of
	}
	return out
}

func (s *scenario) xds(t *testing.T) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, node := range s.nodes {
		r, err := translate.Proxy(s.mesh, node)
		if err != nil {
			t.Fatal(err)
		}
		all[node.ID()] = map[string]any{
			"listeners": plain(t, r.Listeners), "clusters": plain(t, r.Clusters), "routes": plain(t, r.Routes),
			"endpoints": plain(t, r.Endpoints), "secrets": plain(t, r.Secrets),
		}
	}
	return map[string]any{"nodes": all}
}

func plain[T proto.Message](t *testing.T, in []T) []any {
	t.Helper()
	out := make([]any, 0, len(in))
	for _, m := range in {
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

func toYAML(t *testing.T, v any) []byte {
	t.Helper()
	text, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func names(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("*/in.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < minimum {
		t.Fatalf("%d scenarios, want at least %d", len(found), minimum)
	}
	for i := range found {
		found[i] = filepath.Dir(found[i])
	}
	return found
}

func TestGolden(t *testing.T) {
	for _, name := range names(t) {
		t.Run(name, func(t *testing.T) {
			s := load(t, name)
			if refused := strings.HasPrefix(name, "error-"); refused != (len(s.errors) > 0) {
				t.Fatalf("refused is %v, the folder's name says %v: %v", !refused, refused, errors.Join(s.errors...))
			}
			files := s.files(t)
			for _, file := range []string{"model.yaml", "xds.yaml", "status.yaml"} {
				path := filepath.Join(name, file)
				want, err := os.ReadFile(path)
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				got, expected := files[file]
				switch {
				case *update && expected:
					if err := os.WriteFile(path, got, 0o644); err != nil {
						t.Fatal(err)
					}
				case *update && want != nil:
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
				case expected != (want != nil):
					t.Errorf("%s: there is one: %v, expected: %v; run `make golden` and read the diff", path, want != nil, expected)
				default:
					if diff := cmp.Diff(lines(want), lines(got)); diff != "" {
						t.Errorf("%s differs (-want +got); when that is right, run `make golden`:\n%s", path, diff)
					}
				}
			}
		})
	}
}

func lines(text []byte) []string {
	var out []string
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		out = append(out, s.Text())
	}
	return out
}

// TestSameInputSameOutput: resources must not depend on the order of maps, else proxies would be sent what they have.
func TestSameInputSameOutput(t *testing.T) {
	for _, name := range names(t) {
		first := load(t, name).files(t)
		for range 3 {
			again := load(t, name).files(t)
			for file, want := range first {
				if !bytes.Equal(want, again[file]) {
					t.Errorf("%s/%s differs from run to run", name, file)
				}
			}
		}
	}
}
