package objects

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/api/v1alpha1"
)

const globalNamespace = `
apiVersion: heddle.io/v1alpha1
kind: GlobalNamespace
metadata: { name: boutique }
spec:
  domain: acme.demo
  mappings: [{ cluster: "cluster*", namespace: shop }]
  externalServices:
  - { name: rates, hosts: [rates.example.com], ports: [{ name: http, port: 80, targetPort: 443, tls: true }, { port: 81 }] }
  publicServices: [{ service: web, host: shop.example.com, credentialName: shop }]
  defaultDeny: true
  resilience: { localityFailover: false, outlierDetection: { interval: 1500ms } }
`

const plainCluster = `
apiVersion: heddle.io/v1alpha1
kind: Cluster
metadata: { name: cluster1 }
spec: { primary: true, joined: 2026-01-01T00:00:00Z }
---
apiVersion: heddle.io/v1alpha1
kind: GlobalNamespace
metadata: { name: plain }
spec: { domain: b.demo, mappings: [{ cluster: a, namespace: b }] }
---
apiVersion: heddle.io/v1alpha1
kind: Cluster
metadata: { name: cluster2 }
`

func TestGlobalNamespaceDefaults(t *testing.T) {
	g := decodeAll(t, globalNamespace)[0].Resource.(*v1alpha1.GlobalNamespace)
	if p := g.Spec.ExternalServices[0].Ports; p[0].TargetPort != 443 || p[1].TargetPort != 81 {
		t.Errorf("ports are %+v", p)
	}
	if g.Spec.Failover() || g.Spec.Resilience.OutlierDetection.Interval.Duration != 1500*time.Millisecond {
		t.Errorf("got %+v", g.Spec.Resilience)
	}
}

// TestMeshKindsSurviveEncoding: what is written out, stored or copied is what was read, without fields that nobody set.
func TestMeshKindsSurviveEncoding(t *testing.T) {
	for _, o := range decodeAll(t, globalNamespace+"---"+plainCluster) {
		var text bytes.Buffer
		if err := Encode(&text, "yaml", false, o); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text.String(), "null") || strings.Contains(text.String(), "{}") && o.GetName() != "cluster2" {
			t.Errorf("%s is written as\n%s", o.Key(), text.String())
		}
		again := decodeAll(t, text.String())[0]
		if !reflect.DeepEqual(again.Resource, o.Resource) {
			t.Errorf("%s came back as\n%s", o.Key(), text.String())
		}
		stored, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var read Object
		if err := json.Unmarshal(stored, &read); err != nil || !reflect.DeepEqual(read.Resource, o.Resource) {
			t.Errorf("%s came back from the store as %s: %v", o.Key(), stored, err)
		}
		if copied := o.DeepCopy(); !reflect.DeepEqual(copied.Resource, o.Resource) {
			t.Errorf("the copy of %s is %+v", o.Key(), copied.Resource)
		}
	}
}

func TestFindsMeshKinds(t *testing.T) {
	for name, want := range map[string]*Kind{
		"gns": GlobalNamespace, "cl": Cluster, "clusters": Cluster, "globalnamespaces.heddle.io": GlobalNamespace, "GlobalNamespace": GlobalNamespace,
	} {
		if k, err := FindKind(name); err != nil || k != want {
			t.Errorf("%s: got %v, %v", name, k, err)
		}
	}
}

func TestUnknownKindsSayWhichThereAre(t *testing.T) {
	for name, want := range map[string]string{
		"banana":   `there is no kind "banana". Kinds are: clusters, `,
		"servcies": `there is no kind "servcies"; did you mean "services"? Kinds are: clusters, `,
	} {
		if _, err := FindKind(name); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want it to begin with %s", err, want)
		}
	}
}
