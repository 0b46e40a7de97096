package cluster

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/translate"
)

const stockEnvoy = "/opt/envoy/bin/envoy"

// applied is what the manifests of a way are once they are admitted.
func applied(t *testing.T, w Way) []*objects.Object {
	t.Helper()
	text, err := w.manifests(stockEnvoy)
	if err != nil {
		t.Fatal(err)
	}
	decoded, errs := objects.Decode(bytes.NewReader(text), "way.yaml", "")
	var writes []store.Write
	for _, o := range decoded {
		writes = append(writes, store.Write{Key: o.Key(), Object: o})
	}
	root := &corev1.Namespace{}
	root.Name = model.DefaultSettings(name).RootNamespace
	existing := []*objects.Object{{Kind: objects.Namespace, Resource: root}}
	if len(errs) == 0 {
		writes, errs = resolve.Check(model.DefaultSettings(name), existing, writes)
	}
	if len(errs) > 0 {
		t.Fatalf("%v\n%s", errs, text)
	}
	return resolve.Merge(existing, writes)
}

func workload(t *testing.T, all []*objects.Object, named string) *v1alpha1.Workload {
	t.Helper()
	for _, o := range all {
		if w, ok := o.Resource.(*v1alpha1.Workload); ok && w.Name == named {
			return w
		}
	}
	t.Fatalf("no workload %s", named)
	return nil
}

func TestWorkloadsOfAWay(t *testing.T) {
	for way, want := range map[Way]map[string]string{
		{Name: "a"}: {"heddle.io/tcp-bypass": "off"},
		{Name: "a", MutualTLS: true, NoTelemetry: true}: {"heddle.io/tcp-bypass": "off"},
		{Name: "a", Bypass: "both"}:                     {"heddle.io/tcp-bypass": "both"},
		{Name: "a", EBPF: true, Envoy: true}:            {"heddle.io/tcp-bypass": "off", "heddle.io/capture": "ebpf", "heddle.io/proxy-path": stockEnvoy},
		{Name: "a", Direct: true}: {"heddle.io/tcp-bypass": "off", "heddle.io/capture": "ebpf",
			"traffic.sidecar.istio.io/includeOutboundIPRanges": "", "traffic.sidecar.istio.io/includeInboundPorts": ""},
	} {
		all := applied(t, way)
		for _, named := range []string{clientWorkload, serverWorkload} {
			got := workload(t, all, named).Annotations
			for annotation, value := range want {
				if have, ok := got[annotation]; !ok || have != value {
					t.Errorf("%+v: %s of the %s is %q, want %q", way, annotation, named, have, value)
				}
			}
			if len(got) != len(want) {
				t.Errorf("%+v: the %s has %v, want %v", way, named, got, want)
			}
		}
		config := workload(t, all, serverWorkload).Spec.Env[0].Value
		if !strings.Contains(config, "listen 0.0.0.0:8080 ") || strings.Count(config, "x") < responseSize {
			t.Errorf("%+v: the server has\n%s", way, config)
		}
	}
}

// managers are the connection managers of a workload's listener, as heddle-proxy is sent them.
func managers(t *testing.T, all []*objects.Object, workload, listener string) []*hcmv3.HttpConnectionManager {
	t.Helper()
	settings := model.DefaultSettings(name)
	pods := settings.Family.Ranges().Gateway().Addr()
	key := func(named string) objects.Key {
		return objects.Key{Group: v1alpha1.Group, Kind: "Workload", Namespace: "a", Name: named}
	}
	instances := []registry.Instance{
		{Workload: key(clientWorkload), Name: replica(clientWorkload), Address: pods.Next(), Cluster: name, HasProxy: true, Ready: true},
		{Workload: key(serverWorkload), Name: replica(serverWorkload), Address: pods.Next().Next(), Cluster: name, HasProxy: true, Ready: true,
			Labels: map[string]string{"app": "server"}, Ports: []registry.Port{{Name: "http", Number: serverPort}}},
	}
	mesh, _ := resolve.Mesh(settings, all, resolve.Runtime{Instances: instances})
	at := slices.IndexFunc(instances, func(i registry.Instance) bool { return i.Workload.Name == workload })
	resources, err := translate.Proxy(mesh, translate.Node{Type: translate.Sidecar, Namespace: "a", Name: replica(workload), Workload: workload, Domain: settings.Domain, Cluster: name,
		TrustDomain: settings.TrustDomain, Heddle: true, Version: translate.IstioVersion, Address: instances[at].Address, Labels: instances[at].Labels})
	if err != nil {
		t.Fatal(err)
	}
	var found []*hcmv3.HttpConnectionManager
	for _, l := range resources.Listeners {
		if l.Name != listener {
			continue
		}
		for _, chain := range l.FilterChains {
			for _, filter := range chain.Filters {
				if m := new(hcmv3.HttpConnectionManager); filter.GetTypedConfig().MessageIs(m) {
					if err := filter.GetTypedConfig().UnmarshalTo(m); err != nil {
						t.Fatal(err)
					}
					found = append(found, m)
				}
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("listener %s of the %s has no connection manager", listener, workload)
	}
	return found
}

// What replaces a connection manager is the controller's but for telemetry.
func TestTelemetryAloneIsMissing(t *testing.T) {
	with, without := applied(t, Way{Name: "a", MutualTLS: true}), applied(t, Way{Name: "a", MutualTLS: true, NoTelemetry: true})
	for workload, listener := range map[string]string{clientWorkload: "0.0.0.0_80", serverWorkload: "virtualInbound"} {
		want, got := managers(t, with, workload, listener), managers(t, without, workload, listener)
		if len(got) != len(want) {
			t.Errorf("the %s has %d connection managers, want %d", workload, len(got), len(want))
			continue
		}
		for i, m := range want {
			m.AccessLog = nil
			m.HttpFilters = slices.DeleteFunc(m.HttpFilters, func(f *hcmv3.HttpFilter) bool { return strings.HasPrefix(f.Name, "istio.") })
			// Names that only stand in traces, of which there are none.
			for _, host := range m.GetRouteConfig().GetVirtualHosts() {
				for _, route := range host.Routes {
					route.Decorator = nil
				}
			}
			if !proto.Equal(m, got[i]) {
				t.Errorf("the %s's sidecar has\n%v\nwant\n%v", workload, got[i], m)
			}
		}
	}
}

func TestAddressesOfReadyServers(t *testing.T) {
	replicas := replicasOf(t, `[
		{"namespace": "a", "workload": "client", "ready": true, "state": {"name": "client-0", "address": "10.244.0.3"}},
		{"namespace": "a", "workload": "server", "ready": true, "state": {"name": "server-0", "address": "10.244.0.4"}},
		{"namespace": "b", "workload": "server", "state": {"name": "server-0", "address": "10.244.0.5", "message": "waiting for the proxy to be ready"}}]`)
	servers, missing := readyServers([]Way{{Name: "a"}}, replicas)
	if len(missing) > 0 || servers["a"] != netip.MustParseAddr("10.244.0.4") {
		t.Errorf("%v %v", servers, missing)
	}
	_, missing = readyServers([]Way{{Name: "a"}, {Name: "b"}}, replicas)
	if want := []string{"b/client has no replica", "b/server waiting for the proxy to be ready"}; !slices.Equal(missing, want) {
		t.Errorf("%q, want %q", missing, want)
	}
}
