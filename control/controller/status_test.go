package controller

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/push"
	"heddle.io/heddle/control/xds"
)

func TestProgrammed(t *testing.T) {
	const proxy = "sidecar~10.0.0.1~cart-0.shop~shop.svc.cluster.local"
	for _, c := range []struct {
		name     string
		progress push.Progress
		status   metav1.ConditionStatus
		reason   string
		message  string
	}{
		{"nobody uses it", push.Progress{Version: "7"}, metav1.ConditionUnknown, "NoProxies", "no connected proxy uses it"},
		{"all run it", push.Progress{Version: "7", Proxies: 2}, metav1.ConditionTrue, "Programmed", "every connected proxy that uses it runs it"},
		{"one has not answered", push.Progress{Version: "7", Proxies: 2, Waiting: 1}, metav1.ConditionFalse, "Pending", "proxies have not acknowledged it yet"},
		{"the model has an older one", push.Progress{Version: "6", Proxies: 2}, metav1.ConditionFalse, "Pending", "proxies have not acknowledged it yet"},
		{"one refused it", push.Progress{Version: "7", Proxies: 2, Refused: []xds.Refusal{{Proxy: proxy, Reason: "CDS: no"}}}, metav1.ConditionFalse, "Refused", "shop/cart-0 refused CDS: no"},
		{"it could not be made", push.Progress{Version: "7", Failure: "too large"}, metav1.ConditionFalse, "Refused", "too large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := programmed(&objects.Object{Kind: objects.Service, Version: "7", Resource: &corev1.Service{}}, c.progress, stageView{})
			if got == nil || got.Status != c.status || got.Reason != c.reason || got.Message != c.message {
				t.Errorf("got %+v", got)
			}
		})
	}
	for _, kind := range []*objects.Kind{objects.Secret, objects.WorkloadGroup, objects.WorkloadEntry, objects.ConfigMap} {
		if got := programmed(&objects.Object{Kind: kind, Resource: kind.New()}, push.Progress{}, stageView{}); got != nil {
			t.Errorf("%s, which no proxy sees, has %+v", kind.Kind, got)
		}
	}
	if got := (push.Progress{Proxies: 3, Waiting: 1, Refusing: 1}).Running(); got != 1 {
		t.Errorf("%d proxies run it", got)
	}
}

// Looking for statuses takes a tenth of a processor at the most, and is never put off for long.
func TestStatusesTakeTheirShare(t *testing.T) {
	for looked, want := range map[time.Duration]time.Duration{
		0:                      statusPause,
		10 * time.Millisecond:  statusPause,
		100 * time.Millisecond: 900 * time.Millisecond,
		time.Minute:            statusLatest,
	} {
		if got := pauseAfter(looked); got != want {
			t.Errorf("after %s: %s, want %s", looked, got, want)
		}
	}
}

// A workload that was stored when the cluster allowed it says why it is not run any more.
func TestPrivilegedWorkloadsThatAreNotAllowedAnyMore(t *testing.T) {
	namespace := func(labels map[string]string) *objects.Object {
		return &objects.Object{Kind: objects.Namespace, Resource: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: labels}}}
	}
	workload := func(spec v1alpha1.WorkloadSpec) *objects.Object {
		return &objects.Object{Kind: objects.Workload, Resource: &v1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Name: "cart", Namespace: "shop"}, Spec: spec}}
	}
	rooted := workload(v1alpha1.WorkloadSpec{User: "root", Capabilities: []string{"NET_RAW"}})
	for name, c := range map[string]struct {
		o         *objects.Object
		labels    map[string]string
		everybody bool
		refused   bool
	}{
		"refused":            {rooted, nil, false, true},
		"a label that is no": {rooted, map[string]string{access.LabelPrivileged: "false"}, false, true},
		"by its namespace":   {rooted, map[string]string{access.LabelPrivileged: "true"}, false, false},
		"by the cluster":     {rooted, nil, true, false},
		"an ordinary one":    {workload(v1alpha1.WorkloadSpec{}), nil, false, false},
		"another kind":       {namespace(nil), nil, false, false},
	} {
		n := namespace(c.labels)
		got := (&Controller{privilegedWorkloads: c.everybody, objects: map[objects.Key]*objects.Object{n.Key(): n}}).confined(c.o)
		if (got != nil) != c.refused {
			t.Errorf("%s: %+v", name, got)
		}
		if got != nil && (got.Status != metav1.ConditionFalse || got.Reason != "Privileged" || !strings.Contains(got.Message, `user "root"`) || !strings.Contains(got.Message, "NET_RAW")) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A Gateway is reached on the advertised address where the ingress gateway's ports are offered there, else on the gateway's own.
func TestGatewaysAreReachedWhereTheIngressIsOffered(t *testing.T) {
	c := &Controller{config: Config{Cluster: cluster.Cluster{Name: "one", DataRoot: t.TempDir(), RunRoot: t.TempDir()}}}
	if err := os.MkdirAll(c.config.Cluster.Data(), 0o700); err != nil {
		t.Fatal(err)
	}
	host := gatewayv1.HostnameAddressType
	for _, test := range []struct {
		exposed bool
		spec    []gatewayv1.GatewaySpecAddress
		own     []gatewayv1.GatewayStatusAddress
		want    string
	}{
		{true, nil, resolve.AddressesOf([]netip.Addr{netip.MustParseAddr("10.244.0.2")}), "198.18.0.2"},
		{false, nil, resolve.AddressesOf([]netip.Addr{netip.MustParseAddr("10.244.0.2")}), "10.244.0.2"},
		{true, nil, nil, ""},
		{true, []gatewayv1.GatewaySpecAddress{{Type: &host, Value: "own.shop.svc.cluster.local"}}, []gatewayv1.GatewayStatusAddress{{Type: &host, Value: "own.shop.svc.cluster.local"}}, "own.shop.svc.cluster.local"},
	} {
		if err := c.config.Cluster.Keep(cluster.Options{Advertise: netip.MustParseAddr("198.18.0.2"), ExposeIngress: test.exposed}); err != nil {
			t.Fatal(err)
		}
		o := &objects.Object{Kind: objects.KubernetesGateway, Resource: &gatewayv1.Gateway{Spec: gatewayv1.GatewaySpec{Addresses: test.spec}}}
		status := objects.Status{Addresses: test.own}
		reachedBy(o, &status, c.ingressAddress(), "cluster.local")
		got := ""
		if len(status.Addresses) > 0 {
			got = status.Addresses[0].Value
		}
		if got != test.want {
			t.Errorf("%+v: reached by %q", test, got)
		}
	}
}
