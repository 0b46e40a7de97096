package resolve

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

func decodeOne(t *testing.T, manifest string) *objects.Object {
	t.Helper()
	all, errs := objects.Decode(strings.NewReader(manifest), "in.yaml", "")
	if len(errs) > 0 {
		t.Fatal(errs[0])
	}
	return all[0]
}

// TestGatewayAddresses are those of the ingress gateway's replicas that are ready.
func TestGatewayAddresses(t *testing.T) {
	m := New(model.DefaultSettings("one"))
	g := decodeOne(t, "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: shop}\nspec: {gatewayClassName: heddle, listeners: [{name: http, port: 80, protocol: HTTP}]}\n")
	m.Update(Change{Objects: map[objects.Key]*objects.Object{g.Key(): g}})
	addresses := func() []string {
		var out []string
		for _, a := range m.Report().Status(g.Key()).Addresses {
			if *a.Type != gatewayv1.IPAddressType {
				t.Errorf("%s is of type %s", a.Value, *a.Type)
			}
			out = append(out, a.Value)
		}
		return out
	}
	if got := addresses(); len(got) > 0 {
		t.Errorf("without a gateway: %v", got)
	}
	replica := func(i byte, ready bool) {
		r := registry.Instance{
			Workload: objects.Key{Group: objects.Workload.Group, Kind: objects.Workload.Kind, Namespace: "istio-system", Name: "istio-ingressgateway"},
			Name:     "istio-ingressgateway-" + string('0'+i), Address: netip.AddrFrom4([4]byte{10, 244, 0, 9 - i}), Ready: ready,
			Labels: map[string]string{"app": "istio-ingressgateway", "istio": "ingressgateway"},
		}
		m.Update(Change{Instances: map[string]*registry.Instance{r.ID(): &r}})
	}
	replica(0, true)
	m.Restated()
	replica(1, true)
	if !slices.Contains(m.Restated(), g.Key()) {
		t.Error("it is not said that the Gateway has another status")
	}
	if got := addresses(); !slices.Equal(got, []string{"10.244.0.8", "10.244.0.9"}) {
		t.Errorf("two replicas: %v", got)
	}
	replica(0, false)
	if got := addresses(); !slices.Equal(got, []string{"10.244.0.8"}) {
		t.Errorf("one of two is ready: %v", got)
	}
}

// TestOverlapIsSaidWhileItIs checks that a condition that is never False goes when it is not true any more.
func TestOverlapIsSaidWhileItIs(t *testing.T) {
	gateway := func(host string) *objects.Object {
		return decodeOne(t, "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: shop}\nspec: {gatewayClassName: heddle, listeners: [{name: a, port: 443, protocol: TLS, hostname: '*.example.com', tls: {mode: Passthrough}}, {name: b, port: 443, protocol: TLS, hostname: "+host+", tls: {mode: Passthrough}}, {name: c, port: 444, protocol: TLS, tls: {mode: Passthrough}}]}\n")
	}
	m := New(model.DefaultSettings("one"))
	var status objects.Status
	var at metav1.Time
	overlapping := func(host string) []string {
		o := gateway(host)
		m.Update(Change{Objects: map[objects.Key]*objects.Object{o.Key(): o}})
		status = MergeStatus(status, m.Report().Status(o.Key()), at)
		var out []string
		for _, l := range status.Listeners {
			if slices.ContainsFunc(l.Conditions, func(c metav1.Condition) bool {
				return c.Type == string(gatewayv1.ListenerConditionOverlappingTLSConfig)
			}) {
				out = append(out, string(l.Name))
			}
		}
		return out
	}
	if got := overlapping("www.example.com"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("with a host in common: %v", got)
	}
	if got := overlapping("www.example.org"); len(got) > 0 {
		t.Errorf("without any: %v", got)
	}
}

// TestFeaturesAreSorted checks that the features of classes stand as the API has them: by name, each once.
func TestFeaturesAreSorted(t *testing.T) {
	if !slices.IsSortedFunc(sortedFeatures, func(a, b gatewayv1.SupportedFeature) int { return strings.Compare(string(a.Name), string(b.Name)) }) {
		t.Error("not by name")
	}
	if got := slices.Compact(slices.Clone(sortedFeatures)); len(got) != len(sortedFeatures) || len(got) == 0 {
		t.Errorf("%d features, %d different ones", len(sortedFeatures), len(got))
	}
}
