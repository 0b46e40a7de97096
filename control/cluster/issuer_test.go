package cluster

import (
	"strings"
	"testing"
)

const domain = "cluster.local"

var member = Issuer{Cluster: "far", Membership: strings.Repeat("0123456789abcdef", 4)}

func TestNamesOfIssuers(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Issuer{Cluster: "near"}.Name(domain), "near.clusters.cluster.local"},
		{member.Name(domain), "0123456789abcdef0123456789abcdef.far.clusters.cluster.local"},
		{Issuer{Cluster: "near"}.Account(domain, "shop", "cart"), "cart.shop.near.clusters.cluster.local"},
		{member.Account(domain, "shop", "cart"), "cart.shop." + member.Name(domain)},
		{member.Namespace(domain, "shop"), ".shop." + member.Name(domain)},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
}

// TestNoTwoAccountsHaveOneName: whatever an account is called, and in which namespace and cluster, its name is its own,
// ends as names of its namespace do, and is a DNS name.
func TestNoTwoAccountsHaveOneName(t *testing.T) {
	long := strings.Repeat("a", 60)
	seen := map[string]string{}
	for _, i := range []Issuer{{Cluster: "near"}, {Cluster: "far"}, member, {Cluster: "far", Membership: strings.Repeat("f", 64)}} {
		for _, namespace := range []string{"shop", "clusters", "far", long} {
			for _, account := range []string{
				"cart", "shop", "a.b", "cart.shop", "x.clusters", "x.clusters.cluster.local", "a-b", "near", long + "." + long + "." + long + "." + long, long + "." + long + "." + long + ".b",
				strings.Repeat("a", 63), strings.Repeat("a", 64),
			} {
				name := i.Account(domain, namespace, account)
				whose := i.Cluster + i.Membership + "/" + namespace + "/" + account
				if other, taken := seen[name]; taken {
					t.Errorf("%s is of %s and of %s", name, whose, other)
				}
				seen[name] = whose
				if !strings.HasSuffix(name, i.Namespace(domain, namespace)) || len(name) > maxName {
					t.Errorf("%s: %s (%d)", whose, name, len(name))
				}
				for label := range strings.SplitSeq(name, ".") {
					if label == "" || len(label) > 63 {
						t.Errorf("%s: label %q", whose, label)
					}
				}
				if name == i.Name(domain) {
					t.Errorf("%s is the issuer's own name", name)
				}
			}
		}
	}
}

func TestWhoACertificateIsOf(t *testing.T) {
	const cart = "spiffe://cluster.local/ns/shop/sa/cart"
	names := []string{member.Name(domain), member.Account(domain, "shop", "cart")}
	if !member.Issued(domain, names) || !member.Proves(domain, cart, names) {
		t.Error("it is not who it is")
	}
	for _, c := range []struct {
		issuer   Issuer
		identity string
		names    []string
	}{
		{Issuer{Cluster: "far"}, cart, names},
		{Issuer{Cluster: "near"}, cart, names},
		{Issuer{Cluster: "far", Membership: strings.Repeat("f", 64)}, cart, names},
		{member, "spiffe://cluster.local/ns/shop/sa/web", names},
		{member, "spiffe://cluster.local/ns/bank/sa/cart", names},
		{member, "spiffe://other/ns/shop/sa/cart", names},
		{member, "spiffe://cluster.local/ns/shop/sa/cart/x", names},
		{member, "spiffe://cluster.local/ns/shop/sa/", names},
		{member, "spiffe://cluster.local/ns/a.b/sa/cart", []string{member.Account(domain, "a.b", "cart")}},
		{member, cart, names[:1]},
		{member, cart, nil},
	} {
		if c.issuer.Proves(domain, c.identity, c.names) {
			t.Errorf("%q are %s of %v", c.names, c.identity, c.issuer)
		}
	}
}
