package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	if got := programmed(&objects.Object{Kind: objects.Secret, Resource: &corev1.Secret{}}, push.Progress{}, stageView{}); got != nil {
		t.Errorf("a kind that no proxy sees has %+v", got)
	}
	if got := (push.Progress{Proxies: 3, Waiting: 1, Refused: make([]xds.Refusal, 1)}).Running(); got != 1 {
		t.Errorf("%d proxies run it", got)
	}
}
