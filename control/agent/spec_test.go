package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/control/agent/identity"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/objects"
)

// The workload's annotation comes before the mesh's default, as Istio merges them; gateways have the default.
func TestKeyProviderOfAReplica(t *testing.T) {
	mesh := &objects.KeyProvider{PollDelay: 2 * time.Millisecond}
	for _, test := range []struct {
		annotation string
		mesh       *objects.KeyProvider
		want       time.Duration
	}{
		{},
		{mesh: mesh, want: 2 * time.Millisecond},
		{annotation: "privateKeyProvider: {cryptomb: {pollDelay: 0.01s}}", want: 10 * time.Millisecond},
		{annotation: "privateKeyProvider: {cryptomb: {pollDelay: 0.01s}}", mesh: mesh, want: 10 * time.Millisecond},
		{annotation: "{}", mesh: mesh, want: 2 * time.Millisecond},
	} {
		w := workload()
		w.Annotations[objects.AnnotationProxyConfig] = test.annotation
		var got time.Duration
		if p := replicas(w, "c", false, test.mesh)[0].KeyProvider; p != nil {
			got = p.PollDelay
		}
		if got != test.want {
			t.Errorf("%q with default %v: %s, want %s", test.annotation, test.mesh, got, test.want)
		}
	}
	for key, specs := range gateways(cluster.Options{EastWestGateways: 1}, mesh) {
		if specs[0].KeyProvider != mesh {
			t.Errorf("%s: %v", key, specs[0].KeyProvider)
		}
	}
}

func TestDefaultKeyProviderOfTheMesh(t *testing.T) {
	known := func(name, text string) map[objects.Key]*objects.Object {
		key := objects.Key{Kind: objects.ConfigMap.Kind, Namespace: cluster.GatewayNamespace, Name: name}
		return map[objects.Key]*objects.Object{key: {Resource: &corev1.ConfigMap{Data: map[string]string{objects.MeshConfigKey: text}}}}
	}
	const text = "defaultConfig: {privateKeyProvider: {cryptomb: {pollDelay: 0.003s}}}"
	if p, err := meshProvider(known(objects.MeshConfigName, text)); err != nil || p == nil || p.PollDelay != 3*time.Millisecond {
		t.Errorf("got %v, %v", p, err)
	}
	for name, known := range map[string]map[objects.Key]*objects.Object{"nothing": nil, "another ConfigMap": known("other", text)} {
		if p, err := meshProvider(known); p != nil || err != nil {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	if _, err := meshProvider(known(objects.MeshConfigName, "[")); err == nil || !strings.Contains(err.Error(), "data.mesh: is no YAML") {
		t.Errorf("got %v", err)
	}
}

// A running replica is told of another provider, and stays; one of another program is not told where it may do without.
func TestRunningReplicasAreToldOfAnotherKeyProvider(t *testing.T) {
	a := newAgent(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.deploy(ctx, "shop/cart", replicas(workload(), "c", false, nil))
	until(t, "the start", func() bool { return len(a.all()) == 2 })
	before := map[*replica]bool{}
	for _, r := range a.all() {
		before[r] = true
	}
	mesh := &objects.KeyProvider{PollDelay: time.Millisecond}
	a.deploy(ctx, "shop/cart", replicas(workload(), "c", false, mesh))
	told := func(r *replica) bool { r.keying.Lock(); defer r.keying.Unlock(); return r.provider == mesh }
	until(t, "the other provider", func() bool {
		for _, r := range a.all() {
			if !told(r) {
				return false
			}
		}
		return true
	})
	for _, r := range a.all() {
		if !before[r] {
			t.Errorf("%s was replaced", r.spec.key())
		}
	}
	a.undeploy(ctx, "shop/cart")
	until(t, "the end", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.deployments) == 0 })

	envoy := a.newReplica(replicaSpec{ProxyPath: "/usr/bin/envoy"})
	envoy.credential = identity.NewCredential(ca.Identity{}, ca.RSA2048, nil, a.log)
	envoy.useKeysBy(&objects.KeyProvider{PollDelay: time.Millisecond, Fallback: true})
	if p := envoy.credential.KeysUsedBy(); p != nil {
		t.Errorf("Envoy is told of %v", p)
	}
	envoy.useKeysBy(mesh)
	if p := envoy.credential.KeysUsedBy(); p != mesh {
		t.Errorf("Envoy is told of %v, without fallback", p)
	}
}
