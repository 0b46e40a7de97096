package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// oneOfMany is the API of one of several clusters: it decodes what is applied, passes over what is labelled for others
// when asked to, and remembers the rest.
type oneOfMany struct {
	name, primary string
	refuse        func(client.ApplyRequest) *client.Problem
	dry, real     []string
}

func (a *oneOfMany) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/heddle/v1/federation":
		_ = json.NewEncoder(w).Encode(client.FederationStatus{Cluster: a.name, Primary: a.primary})
	case "/heddle/v1/apply":
		var request client.ApplyRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if a.refuse != nil {
			if problem := a.refuse(request); problem != nil {
				w.WriteHeader(problem.Status)
				_ = json.NewEncoder(w).Encode(problem)
				return
			}
		}
		response := client.ApplyResponse{DryRun: request.DryRun}
		for _, m := range request.Manifests {
			found, errs := objects.Decode(strings.NewReader(m.Content), m.File, request.Namespace)
			if len(errs) > 0 {
				http.Error(w, fmt.Sprint(errs), http.StatusBadRequest)
				return
			}
			for _, o := range found {
				if label := o.GetLabels()[objects.LabelCluster]; request.SkipOthers && label != "" && label != a.name {
					continue
				}
				text := fmt.Sprintf("%s:%d %s", filepath.Base(m.File), o.Origin.Line, o.GetName())
				if request.Delete {
					text = "delete " + text
				}
				if request.DryRun {
					a.dry = append(a.dry, text)
				} else {
					a.real = append(a.real, text)
				}
				response.Results = append(response.Results, client.Result{Key: o.Key(), Action: client.ActionCreated})
			}
		}
		_ = json.NewEncoder(w).Encode(response)
	default:
		http.NotFound(w, r)
	}
}

// runMany runs a command line on a machine with several clusters. current is the current context.
func runMany(t *testing.T, apis map[string]http.Handler, current string, args ...string) (string, int) {
	t.Helper()
	t.Setenv("HEDDLE_CLUSTER", "")
	dir := t.TempDir()
	var names []string
	for _, name := range slices.Sorted(maps.Keys(apis)) {
		names = append(names, name)
		listener, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: apis[name], ReadHeaderTimeout: time.Second}
		go func() { _ = server.Serve(listener) }()
		defer server.Close()
	}
	var out, errs bytes.Buffer
	s := &session{in: strings.NewReader(""), out: &out, err: &errs, contexts: contextFile{path: filepath.Join(dir, "config.yaml"), here: func() []string { return names }},
		connect: func(socket string) *client.Client {
			return client.New(filepath.Join(dir, filepath.Base(filepath.Dir(socket))))
		},
		now: func() time.Time { return noon }}
	if current != "" {
		if err := s.contexts.write(contextContent{Current: current}); err != nil {
			t.Fatal(err)
		}
	}
	code := s.main(context.Background(), args)
	text := out.String()
	if errs.Len() > 0 {
		text += "--- stderr\n" + errs.String()
	}
	return strings.ReplaceAll(text, dir+"/", ""), code
}

const mixed = `# One document per line of thought.
apiVersion: v1
kind: Service
metadata: { name: near, namespace: shop, labels: { heddle.io/cluster: east } }
spec: { selector: { app: x }, ports: [{ port: 80 }] }
---
apiVersion: v1
kind: Service
metadata: { name: far, namespace: shop, labels: { heddle.io/cluster: west } }
spec: { selector: { app: x }, ports: [{ port: 80 }] }
---
apiVersion: v1
kind: Namespace
metadata: { name: shop }
--- # A Workload may say it in its own field.
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: runner, namespace: shop }
spec: { cluster: west, command: [run] }
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ServiceAccount
  metadata: { name: anywhere, namespace: shop }
- apiVersion: v1
  kind: ServiceAccount
  metadata: { name: yonder, namespace: shop, labels: { heddle.io/cluster: west } }
---
apiVersion: heddle.io/v1alpha1
kind: GlobalNamespace
metadata: { name: all }
spec: { domain: acme.demo, mappings: [{ cluster: "*", namespace: shop }] }
`

func manifestFile(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "all.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestApplyBringsEachObjectToItsCluster(t *testing.T) {
	east, west := &oneOfMany{name: "east", primary: "west"}, &oneOfMany{name: "west", primary: "west"}
	file := manifestFile(t, mixed)
	got, code := runMany(t, map[string]http.Handler{"east": east, "west": west}, "east", "apply", "-f", file)
	if code != 0 {
		t.Fatal(got)
	}
	// The List is divided: its parts are told at its first line.
	want := map[string]string{
		"east": "all.yaml:2 near, all.yaml:12 shop, all.yaml:20 anywhere",
		"west": "all.yaml:7 far, all.yaml:16 runner, all.yaml:20 yonder, all.yaml:31 all",
	}
	for _, a := range []*oneOfMany{east, west} {
		if got := strings.Join(a.real, ", "); got != want[a.name] {
			t.Errorf("%s got %s\nwant %s", a.name, got, want[a.name])
		}
		if strings.Join(a.dry, ", ") != want[a.name] {
			t.Errorf("%s checked %v before", a.name, a.dry)
		}
	}
	golden(t, "apply-two-clusters", got)

	got, code = runMany(t, map[string]http.Handler{"east": east, "west": west}, "east", "apply", "-f", file, "--dry-run")
	if code != 0 || strings.Count(got, "in west (dry run)") != 4 || len(east.real) != 3 || len(west.real) != 4 {
		t.Errorf("%d: %s", code, got)
	}
	got, code = runMany(t, map[string]http.Handler{"east": east, "west": west}, "east", "delete", "-f", file)
	if code != 0 || len(east.real) != 6 || !strings.HasPrefix(east.real[3], "delete ") {
		t.Errorf("%d: %s: %v", code, got, east.real)
	}
}

func TestHerePassesOverOtherMachines(t *testing.T) {
	file := manifestFile(t, mixed)
	for name, c := range map[string]struct {
		args []string
		want string
		note string
	}{
		"no choice":  {[]string{"--here"}, "near shop anywhere all", "3 objects of cluster west passed over\n"},
		"one chosen": {[]string{"--here", "--cluster", "east"}, "near shop runner anywhere all", ""},
	} {
		t.Run(name, func(t *testing.T) {
			east := &oneOfMany{name: "east", primary: "west"}
			got, code := runMany(t, map[string]http.Handler{"east": east}, "", append([]string{"apply", "-f", file}, c.args...)...)
			var names []string
			for _, text := range east.real {
				names = append(names, strings.Fields(text)[1])
			}
			// The stand-in does not know spec.cluster, as the server does.
			if code != 0 || strings.Join(names, " ") != c.want || !strings.Contains(got, c.note) || strings.Contains(got, "in east") {
				t.Errorf("%d, %v:\n%s", code, names, got)
			}
		})
	}
	foreign := manifestFile(t, "apiVersion: v1\nkind: Namespace\nmetadata: { name: shop, labels: { heddle.io/cluster: west } }\n")
	got, code := runMany(t, map[string]http.Handler{"east": &oneOfMany{name: "east"}}, "", "apply", "--here", "-f", foreign)
	if code != exitError || !strings.Contains(got, "they belong to west; clusters here: east") {
		t.Errorf("%d: %s", code, got)
	}
}

func TestApplyToOneClusterIsAsBefore(t *testing.T) {
	plain := manifestFile(t, "apiVersion: v1\nkind: Namespace\nmetadata: { name: shop }\n")
	labelled := manifestFile(t, "apiVersion: v1\nkind: Namespace\nmetadata: { name: shop, labels: { heddle.io/cluster: west } }\n")
	for name, c := range map[string]struct {
		current string
		args    []string
		want    string
	}{
		"current context":     {"east", []string{"apply", "-f", plain}, "east"},
		"chosen by flag":      {"east", []string{"apply", "-f", plain, "--cluster", "west"}, "west"},
		"labelled, no choice": {"", []string{"apply", "-f", labelled}, "west"},
	} {
		t.Run(name, func(t *testing.T) {
			apis := map[string]*oneOfMany{"east": {name: "east"}, "west": {name: "west"}}
			got, code := runMany(t, map[string]http.Handler{"east": apis["east"], "west": apis["west"]}, c.current, c.args...)
			if code != 0 || got != "namespace/shop created\n" {
				t.Errorf("%d: %s", code, got)
			}
			for cluster, a := range apis {
				if wrote := len(a.real) == 1; wrote != (cluster == c.want) || len(a.dry) != 0 {
					t.Errorf("%s: %v, %v", cluster, a.real, a.dry)
				}
			}
		})
	}
}

func TestApplyOverClustersRefuses(t *testing.T) {
	no := func(when bool) func(client.ApplyRequest) *client.Problem {
		return func(r client.ApplyRequest) *client.Problem {
			if r.DryRun != when {
				return nil
			}
			return &client.Problem{Status: http.StatusUnprocessableEntity, What: "nothing was changed: 1 error", Remedy: "correct it"}
		}
	}
	for name, c := range map[string]struct {
		manifest, current string
		west              func(client.ApplyRequest) *client.Problem
		changed           int
	}{
		"apply-owner-elsewhere": {manifest: strings.ReplaceAll(mixed, "west", "north"), current: "east"},
		"apply-owner-unknown":   {manifest: mixed},
		"apply-two-owners": {manifest: "apiVersion: heddle.io/v1alpha1\nkind: Workload\nmetadata: { name: w, labels: { heddle.io/cluster: east } }\nspec:\n  command: [run]\n  cluster: west\n",
			current: "east"},
		"apply-not-decoded":        {manifest: "kind: Service\n---\nkind: [\n", current: "east"},
		"apply-second-refuses":     {manifest: mixed, current: "east", west: no(true)},
		"apply-second-fails-later": {manifest: mixed, current: "east", west: no(false), changed: 3},
	} {
		t.Run(name, func(t *testing.T) {
			east, west := &oneOfMany{name: "east", primary: "west"}, &oneOfMany{name: "west", primary: "west", refuse: c.west}
			file := manifestFile(t, c.manifest)
			got, code := runMany(t, map[string]http.Handler{"east": east, "west": west}, c.current, "apply", "-f", file)
			if code != exitError {
				t.Errorf("exit code %d", code)
			}
			if len(east.real) != c.changed || len(west.real) != 0 {
				t.Errorf("changed: %v, %v", east.real, west.real)
			}
			golden(t, name, strings.ReplaceAll(got, filepath.Dir(file)+"/", ""))
		})
	}
}
