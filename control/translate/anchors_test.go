package translate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
)

// clusters of the mesh that anchors are counted in, and services; one in ten lives in two clusters, one in a hundred in all.
const anchorClusters, anchorServices = 20, 1000

func anchorsFrom(name, text string) *model.Anchors {
	return &model.Anchors{Cluster: name, Certificates: text}
}

// wide is a mesh of many services in many clusters, all of which announce their intermediates.
func wide() *model.Mesh {
	settings := model.DefaultSettings("cluster00")
	m := &model.Mesh{}
	for n := range anchorClusters {
		name := fmt.Sprintf("cluster%02d", n)
		settings.Clusters = append(settings.Clusters, name)
		settings.Issuers = append(settings.Issuers, cluster.Issuer{Cluster: name, Membership: strings.Repeat(fmt.Sprintf("%02x", n), 32)})
		m.Anchors = append(m.Anchors, anchorsFrom(name, "first of "+name))
	}
	m.Settings = settings
	for n := range anchorServices {
		s := web(func(s *model.Service) {
			s.Name, s.Imported, s.Replicas, s.Selector = fmt.Sprintf("s-%04d", n), true, nil, nil
			s.Host = s.Name + ".shop.svc.cluster.local"
			homes := []int{1 + n%(anchorClusters-1)}
			switch {
			case n%100 == 0:
				homes = nil
				for other := 1; other < anchorClusters; other++ {
					homes = append(homes, other)
				}
			case n%10 == 0:
				homes = []int{1, 2 + n%(anchorClusters-2)}
			}
			for _, h := range homes {
				r := remote(fmt.Sprintf("cluster%02d", h), 1, 1)
				r.Identities = []string{"spiffe://cluster.local/ns/shop/sa/web"}
				s.Remote = append(s.Remote, r)
			}
		})
		m.Services = append(m.Services, s)
	}
	slices.SortFunc(m.Services, model.CompareServices)
	return m
}

// with is the mesh with other anchors of a cluster; none with an empty text.
func with(m *model.Mesh, name, text string) *model.Mesh {
	out := *m
	out.Anchors = slices.Clone(m.Anchors)
	at := slices.IndexFunc(out.Anchors, func(a *model.Anchors) bool { return a.Cluster == name })
	if text == "" {
		out.Anchors = slices.Delete(out.Anchors, at, at+1)
	} else {
		out.Anchors[at] = anchorsFrom(name, text)
	}
	return &out
}

func clientOf(t testing.TB, c *Cache, m *model.Mesh) *Client {
	t.Helper()
	kinds, err := Kinds(m, node())
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(kinds, func(k Kind) bool { return k.Role == Outbound })
	client, err := c.Client(m, kinds[at], nil)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// authorities that a cluster's TLS names.
func authorities(t *testing.T, r *Resources, name string) string {
	t.Helper()
	for _, c := range r.Clusters {
		if c.Name != name {
			continue
		}
		context := &tlsv3.UpstreamTlsContext{}
		if err := c.TransportSocketMatches[0].TransportSocket.GetTypedConfig().UnmarshalTo(context); err != nil {
			t.Fatal(err)
		}
		return context.CommonTlsContext.GetCombinedValidationContext().ValidationContextSdsSecretConfig.Name
	}
	t.Fatalf("no cluster %s", name)
	return ""
}

func text(s *tlsv3.Secret) string {
	return string(s.GetValidationContext().GetTrustedCa().GetInlineBytes())
}

// TestAnchorsOfLargeMeshes: services that live in the same clusters share a secret, and a change of one cluster's
// intermediates is a change of the secrets that have them, and of nothing else.
func TestAnchorsOfLargeMeshes(t *testing.T) {
	cache, before := NewCache(), wide()
	client := clientOf(t, cache, before)
	all := client.Resources()
	t.Logf("%d services in %d clusters: %d secrets", anchorServices, anchorClusters, len(all.Secrets))
	if len(all.Secrets) != 29 {
		t.Errorf("%d secrets", len(all.Secrets))
	}
	after := with(before, "cluster06", "second of cluster06")
	d := model.Differ(before, after)
	delta, ok, err := cache.Apply(client, after, &d)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if n := len(delta.Set.Clusters) + len(delta.Set.Listeners) + len(delta.Set.Routes) + len(delta.Set.Endpoints); n != 0 || len(delta.Secrets) != 0 {
		t.Errorf("%d other resources, %q gone", n, delta.Secrets)
	}
	t.Logf("the intermediates of one cluster change: %d secrets", len(delta.Set.Secrets))
	if len(delta.Set.Secrets) != 3 {
		t.Errorf("%d secrets", len(delta.Set.Secrets))
	}
	for _, s := range delta.Set.Secrets {
		if got := text(s); strings.Contains(got, "first of cluster06") || !strings.Contains(got, "second of cluster06") {
			t.Errorf("%s holds %q", s.Name, got)
		}
	}
	fresh := clientOf(t, NewCache(), after).Resources()
	now := client.Resources()
	fresh.sort()
	now.sort()
	if !slices.EqualFunc(fresh.Secrets, now.Secrets, func(x, y *tlsv3.Secret) bool { return x.Name == y.Name && text(x) == text(y) }) {
		t.Error("what was changed is not what would be made now")
	}
}

// TestAnchorsAreOfTheClustersOfTheService: a service's secret holds the intermediates of the clusters that it lives in, and
// of no other; it goes with the last service that has it. A cluster that announces none has its services known by their names.
func TestAnchorsAreOfTheClustersOfTheService(t *testing.T) {
	cache, m := NewCache(), wide()
	client := clientOf(t, cache, m)
	r := client.Resources()
	for _, s := range r.Secrets {
		for _, a := range m.Anchors {
			homes := strings.Split(strings.TrimPrefix(s.Name, "anchors~"), "~")
			if len(homes) > 1 || strings.HasPrefix(homes[0], "cluster") {
				if has := strings.Contains(text(s), a.Certificates); has != slices.Contains(homes, a.Cluster) {
					t.Errorf("%s has the anchors of %s: %v", s.Name, a.Cluster, has)
				}
			}
		}
	}
	const alone, shared = "outbound|80||s-0006.shop.svc.cluster.local", "outbound|80||s-0100.shop.svc.cluster.local"
	if got := authorities(t, r, alone); got != "anchors~cluster07" {
		t.Errorf("it goes by %s", got)
	}
	if got := authorities(t, r, shared); !strings.HasPrefix(got, "anchors~") || len(got) > maxAnchorNames {
		t.Errorf("it goes by %s", got)
	}
	// The last services of a set move: the set goes, and the one that they have now comes.
	gone := *m
	gone.Services = slices.DeleteFunc(slices.Clone(m.Services), func(s *model.Service) bool {
		return len(s.Remote) == 1 && s.Remote[0].Cluster == "cluster07"
	})
	d := model.Differ(m, &gone)
	delta, ok, err := cache.Apply(client, &gone, &d)
	if err != nil || !ok || !slices.Equal(delta.Secrets, []string{"anchors~cluster07"}) || len(delta.Set.Secrets) != 0 {
		t.Errorf("gone %q, new %d: %v %v", delta.Secrets, len(delta.Set.Secrets), ok, err)
	}
	// An earlier version announces nothing.
	early := with(m, "cluster07", "")
	d = model.Differ(&gone, early)
	if _, ok, err := cache.Apply(client, early, &d); ok || err != nil {
		t.Errorf("it was changed in place: %v", err)
	}
	r = clientOf(t, cache, early).Resources()
	if got := authorities(t, r, alone); got != secretRoots {
		t.Errorf("it goes by %s", got)
	}
	if got := authorities(t, r, shared); got != secretRoots {
		t.Errorf("it goes by %s", got)
	}
	if got := authorities(t, r, "outbound|80||s-0007.shop.svc.cluster.local"); got != "anchors~cluster08" {
		t.Errorf("it goes by %s", got)
	}
}

// BenchmarkAnchorsOfOneCluster changes the intermediates of one of twenty clusters, for a client of a thousand services.
func BenchmarkAnchorsOfOneCluster(b *testing.B) {
	cache, m := NewCache(), wide()
	client := clientOf(b, cache, m)
	secrets := 0
	for i := 0; b.Loop(); i++ {
		after := with(m, "cluster06", fmt.Sprintf("number %d of cluster06", i))
		d := model.Differ(m, after)
		delta, ok, err := cache.Apply(client, after, &d)
		if err != nil || !ok {
			b.Fatal(ok, err)
		}
		secrets, m = len(delta.Set.Secrets), after
	}
	b.ReportMetric(float64(secrets), "secrets/change")
}
