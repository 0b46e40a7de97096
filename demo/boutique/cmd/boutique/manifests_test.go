package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// object is the part of a manifest the test looks at.
type object struct {
	Kind     string
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Spec struct {
		Selector       any
		ServiceAccount string
		Command        []string
		Env            []struct{ Name, Value string }
		Ports          []struct{ Port, TargetPort int }
		Readiness      map[string]struct{ Port int }
	}
}

// clusterLabel names the cluster that an object belongs to.
const clusterLabel = "heddle.io/cluster"

// manifests returns the objects of a folder by kind and name; cluster, when not
// empty, chooses those of one cluster.
func manifests(t *testing.T, folder, cluster string) map[string]map[string]object {
	t.Helper()
	files, err := filepath.Glob("../../" + folder + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	found := map[string]map[string]object{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, document := range bytes.Split(content, []byte("\n---\n")) {
			var o object
			if err := yaml.Unmarshal(document, &o); err != nil {
				t.Fatalf("%s, document %d: %v", file, i+1, err)
			}
			if o.Kind != "Namespace" && o.Metadata.Namespace != "pinnacle" {
				t.Errorf("%s: %s %s is in namespace %q", file, o.Kind, o.Metadata.Name, o.Metadata.Namespace)
			}
			if cluster != "" {
				if owner := o.Metadata.Labels[clusterLabel]; owner != "cluster1" && owner != "cluster2" {
					t.Errorf("%s: %s %s belongs to cluster %q", file, o.Kind, o.Metadata.Name, owner)
				} else if owner != cluster {
					continue
				}
				delete(o.Metadata.Labels, clusterLabel)
			}
			if _, twice := found[o.Kind][o.Metadata.Name]; twice {
				t.Errorf("%s: %s %s is there twice", file, o.Kind, o.Metadata.Name)
			}
			if found[o.Kind] == nil {
				found[o.Kind] = map[string]object{}
			}
			found[o.Kind][o.Metadata.Name] = o
		}
	}
	return found
}

// The manifests repeat what the program knows: names, ports and addresses. This
// keeps the two together.
func TestManifestsFitTheProgram(t *testing.T) {
	found := manifests(t, "manifests", "")
	expected := []part{{name: "redis-cart", port: 6379}}
	for _, p := range append(expected, parts...) {
		workload, known := found["Workload"][p.name]
		if !known {
			t.Errorf("%s has no Workload", p.name)
			continue
		}
		if _, known := found["ServiceAccount"][workload.Spec.ServiceAccount]; !known || workload.Spec.ServiceAccount != p.name {
			t.Errorf("%s runs as %q", p.name, workload.Spec.ServiceAccount)
		}
		if p.run != nil && !slices.Equal(workload.Spec.Command, []string{"boutique", p.name}) {
			t.Errorf("%s is started by %v", p.name, workload.Spec.Command)
		}
		if p.port == 0 {
			continue
		}
		if len(workload.Spec.Ports) != 1 || workload.Spec.Ports[0].Port != p.port {
			t.Errorf("%s listens on %d, its Workload says %v", p.name, p.port, workload.Spec.Ports)
		}
		for kind, probe := range workload.Spec.Readiness {
			if probe.Port != p.port {
				t.Errorf("%s: the %s probe asks port %d, not %d", p.name, kind, probe.Port, p.port)
			}
		}
		service := found["Service"][p.name]
		if len(service.Spec.Ports) != 1 || service.Spec.Ports[0].TargetPort != p.port {
			t.Errorf("%s listens on %d, its Service says %v", p.name, p.port, service.Spec.Ports)
		}
		if selector := fmt.Sprint(service.Spec.Selector); selector != fmt.Sprint(workload.Metadata.Labels) {
			t.Errorf("%s: the Service selects %s, the Workload has %v", p.name, selector, workload.Metadata.Labels)
		}
	}
	addresses := map[string]bool{}
	for name, service := range found["Service"] {
		for _, port := range service.Spec.Ports {
			addresses[fmt.Sprintf("%s:%d", name, port.Port)] = true
		}
	}
	for name, workload := range found["Workload"] {
		for _, variable := range workload.Spec.Env {
			if variable.Name != "RATE" && !addresses[variable.Value] {
				t.Errorf("%s: %s is %q, which no Service answers to", name, variable.Name, variable.Value)
			}
		}
	}
}

// The split shop is the same shop: every service is in one cluster, as its
// Workload, Service and account are, and the rules are in both.
func TestTheSplitShopIsTheWholeShop(t *testing.T) {
	whole := manifests(t, "manifests", "")
	first := []string{"adservice", "checkoutservice", "currencyservice", "emailservice", "paymentservice", "shippingservice"}
	for _, cluster := range []string{"cluster1", "cluster2"} {
		found := manifests(t, "two-clusters", cluster)
		for kind, objects := range whole {
			for name, want := range objects {
				here := (cluster == "cluster1") == slices.Contains(first, name)
				switch kind {
				case "Namespace", "PeerAuthentication", "DestinationRule":
					here = true
				}
				got, known := found[kind][name]
				if known != here {
					t.Errorf("%s %s in %s: %t, want %t", kind, name, cluster, known, here)
				}
				if !known {
					continue
				}
				if kind == "Workload" && slices.Equal(got.Spec.Command, []string{"boutique", name}) {
					if env := got.Spec.Env; len(env) == 0 || env[0].Name != "BOUTIQUE_CLUSTER" || env[0].Value != cluster {
						t.Errorf("%s does not say that it runs in %s: %v", name, cluster, env)
						continue
					}
					if got.Spec.Env = got.Spec.Env[1:]; len(got.Spec.Env) == 0 {
						got.Spec.Env = nil
					}
				}
				if len(got.Metadata.Labels) == 0 {
					got.Metadata.Labels = want.Metadata.Labels
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s %s differs:\n%+v\n%+v", kind, name, got, want)
				}
			}
			for name := range found[kind] {
				if _, known := objects[name]; !known {
					t.Errorf("%s %s is in %s only", kind, name, cluster)
				}
			}
		}
	}
}

func TestEveryRoleIsACommand(t *testing.T) {
	if len(parts) != 11 {
		t.Errorf("%d roles, want 11", len(parts))
	}
	for _, p := range parts {
		if found, _, err := command().Find([]string{p.name}); err != nil || found.Name() != p.name {
			t.Errorf("boutique %s: %v, %v", p.name, found, err)
		}
	}
}
