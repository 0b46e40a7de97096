package server

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

const boutique = `apiVersion: heddle.io/v1alpha1
kind: GlobalNamespace
metadata: { name: boutique }
spec: { domain: acme.demo, mappings: [{ cluster: "*", namespace: shop }] }
`

const cluster2 = `apiVersion: heddle.io/v1alpha1
kind: Cluster
metadata: { name: cluster2 }
spec: {}
`

const workload = `apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: cart, namespace: shop }
spec: { cluster: other, command: [cart] }
`

func applyOthers(c *client.Client, content string, others, remove bool) (client.ApplyResponse, error) {
	return c.Apply(context.Background(), client.ApplyRequest{Manifests: []client.Manifest{{File: "shop.yaml", Content: content}}, SkipOthers: others, Delete: remove, User: "me"})
}

func TestObjectsOfOtherClusters(t *testing.T) {
	c, _ := start(t)
	labelled := strings.Replace(shop, "name: cart,", `name: cart, labels: { heddle.io/cluster: other },`, 1)
	for name, content := range map[string]string{"by label": labelled, "by spec.cluster": shop + "---\n" + workload} {
		_, err := applyOthers(c, content, false, false)
		var problem *client.Problem
		if !errors.As(err, &problem) || len(problem.Errors) != 1 || problem.Errors[0].Line == 0 || problem.Errors[0].Remedy != "apply it with --cluster other" {
			t.Errorf("%s: %v", name, err)
		}
	}
	contradiction := strings.Replace(workload, "name: cart,", `name: cart, labels: { heddle.io/cluster: c },`, 1)
	for _, others := range []bool{false, true} {
		if _, err := applyOthers(c, contradiction, others, false); err == nil || !strings.Contains(err.Error(), "let both name the same cluster") {
			t.Error(err)
		}
	}
	r, err := applyOthers(c, labelled+"---\n"+workload, true, false)
	if err != nil || len(r.Skipped) != 2 || actions(r) != "namespace/shop created" {
		t.Fatalf("%+v %v", r, err)
	}
	// Nothing at all of it for this cluster is no error either; without objects it is.
	if r, err := applyOthers(c, workload, true, false); err != nil || len(r.Results) != 0 || len(r.Skipped) != 1 {
		t.Errorf("%+v %v", r, err)
	}
	if _, err := applyOthers(c, "", true, false); err == nil {
		t.Error("nothing was applied")
	}
	if r, err := applyOthers(c, labelled+"---\n"+workload, true, true); err != nil || len(r.Skipped) != 2 || len(r.Results) != 1 {
		t.Errorf("%+v %v", r, err)
	}
}

func TestObjectsOfTheMeshAreProtected(t *testing.T) {
	w := startAll(t)
	c, federation := w.client, w.mesh
	ctx := context.Background()
	if r, err := applyOthers(c, boutique, false, false); err != nil || len(r.Results) != 1 {
		t.Fatalf("%+v %v", r, err)
	}
	refused := func(err error, want string) {
		t.Helper()
		var problem *client.Problem
		if !errors.As(err, &problem) || !strings.Contains(problem.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	_, err := applyOthers(c, cluster2, false, false)
	refused(err, "is made when a cluster joins, not by hand")
	refused(c.Delete(ctx, objects.Cluster, "", "c"), "not found")
	// It becomes one.
	federation.joining = true
	_, err = applyOthers(c, strings.Replace(boutique, "acme", "other", 1), false, false)
	refused(err, `"c" is joining another mesh`)
	federation.primary, federation.joining = "p", false
	// On a member, whatever the way.
	changed := strings.Replace(boutique, "acme", "other", 1)
	_, err = applyOthers(c, changed, false, false)
	refused(err, `belongs to the primary "p" and is replicated to "c"; use --cluster p`)
	_, err = applyOthers(c, boutique, false, true)
	refused(err, "use --cluster p")
	refused(c.Delete(ctx, objects.GlobalNamespace, "", "boutique"), "use --cluster p")
	o, err := c.Get(ctx, objects.GlobalNamespace, "", "boutique")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Put(ctx, o)
	refused(err, "use --cluster p")
	if r, err := applyOthers(c, changed+"---\n"+shop, true, false); err != nil || len(r.Skipped) != 1 || len(r.Results) != 2 {
		t.Errorf("%+v %v", r, err)
	}
}

func TestNames(t *testing.T) {
	w := startAll(t)
	c, known := w.client, w.known
	known.rename(client.Names{Domain: "cluster.local"})
	names, err := c.Names(context.Background())
	if err != nil || names.Domain != "cluster.local" {
		t.Fatalf("%+v %v", names, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	seen := make(chan client.Names, 4)
	ended := make(chan error, 1)
	go func() { ended <- c.WatchNames(ctx, func(n client.Names) { seen <- n }) }()
	if n := <-seen; len(n.Hosts) != 0 {
		t.Errorf("%+v", n)
	}
	want := client.NamedHost{Name: "cart.acme.demo", Addresses: []netip.Addr{netip.MustParseAddr("240.240.0.1")}, Limited: true, Namespaces: []string{"shop"}}
	known.rename(client.Names{Domain: "cluster.local", Hosts: []client.NamedHost{want}})
	if n := <-seen; len(n.Hosts) != 1 || n.Hosts[0].Name != want.Name || n.Hosts[0].Addresses[0] != want.Addresses[0] {
		t.Errorf("%+v", n)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestFederationCalls(t *testing.T) {
	c, _ := start(t)
	ctx := context.Background()
	if token, err := c.Token(ctx, client.TokenRequest{TTL: time.Hour}); err != nil || token.Token != "hdl1.x" || !token.Expires.Equal(time.Unix(3600, 0)) {
		t.Errorf("%+v %v", token, err)
	}
	var problem *client.Problem
	if _, err := c.Join(ctx, client.JoinRequest{Address: "a"}); !errors.As(err, &problem) || problem.Status != http.StatusBadRequest {
		t.Error(err)
	}
	if status, err := c.Join(ctx, client.JoinRequest{Address: "a", Token: "b"}); err != nil || status.Primary != "p" {
		t.Errorf("%+v %v", status, err)
	}
	if status, err := c.Federation(ctx); err != nil || status.Primary != "p" {
		t.Errorf("%+v %v", status, err)
	}
	if _, err := c.RotateIssuer(ctx); !errors.As(err, &problem) || problem.Status != http.StatusServiceUnavailable {
		t.Error(err)
	}
}
