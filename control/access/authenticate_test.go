package access

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net/http"
	"net/url"
	"testing"
	"time"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/storetest"
)

// What is believed of a request, and in which order: a token before the peer, the peer before the certificate, and nothing
// after what was shown and does not count.
func TestOrderOfCredentials(t *testing.T) {
	const trustDomain = "cluster.local"
	// No account of the machine has these numbers.
	const starter, stranger = 4_000_000_001, 4_000_000_002
	here, peer := cluster.Issuer{Cluster: "here"}, cluster.Issuer{Cluster: "peer"}
	c, bindings := opened(t, storetest.NewMemory())
	for _, o := range []struct {
		name    string
		subject v1alpha1.AccessSubject
	}{
		{"stranger", named(v1alpha1.SubjectUser, "4000000002")},
		{"alice", named(v1alpha1.SubjectUser, "alice")},
		{"cart", v1alpha1.AccessSubject{Kind: v1alpha1.SubjectServiceAccount, Namespace: "shop", Name: "cart"}},
	} {
		b := binding(o.name, Viewer, []string{o.name}, o.subject)
		write(t, c, store.Write{Key: b.Key(), Object: b})
	}
	tokens := &Tokens{Store: c, Now: time.Now}
	made, err := tokens.Make(t.Context(), client.APITokenRequest{Role: "editor", Namespace: "shop"}, "test")
	if err != nil {
		t.Fatal(err)
	}
	bearer := "Bearer " + made.Token
	verified := func(leaf *x509.Certificate, user bool) func() ([]*x509.Certificate, bool, error) {
		return func() ([]*x509.Certificate, bool, error) { return []*x509.Certificate{leaf}, user, nil }
	}
	alice := verified(&x509.Certificate{Subject: pkix.Name{CommonName: "alice"}}, true)
	nameless := verified(&x509.Certificate{}, true)
	cart := func(of cluster.Issuer) func() ([]*x509.Certificate, bool, error) {
		return verified(&x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: trustDomain, Path: "/ns/shop/sa/cart"}},
			DNSNames: []string{of.Account(trustDomain, "shop", "cart")}}, false)
	}
	wrong := func() ([]*x509.Certificate, bool, error) {
		return nil, false, unauthorized("the client certificate does not count", "", "")
	}
	without := func() ([]*x509.Certificate, bool, error) { return nil, false, nil }
	a := &Authenticator{Store: c, Bindings: bindings, Tokens: tokens, Owner: starter, TrustDomain: trustDomain, Issuers: func() []cluster.Issuer { return []cluster.Issuer{here} }}
	token := "token " + made.ID
	for name, tc := range map[string]struct {
		request Request
		// want is the caller and its roles; empty for a 401.
		want, roles string
	}{
		"token":                                  {Request{Authorization: bearer}, token, `editor in namespace "shop"`},
		"token before root":                      {Request{Authorization: bearer, Peer: &Peer{}}, token, `editor in namespace "shop"`},
		"token before certificate":               {Request{Authorization: bearer, TLS: alice}, token, `editor in namespace "shop"`},
		"token before certificate that is wrong": {Request{Authorization: bearer, TLS: wrong}, token, `editor in namespace "shop"`},
		"scheme in small letters":                {Request{Authorization: "bearer " + made.Token}, token, `editor in namespace "shop"`},
		"token that does not count, of root":     {Request{Authorization: bearer + "a", Peer: &Peer{}}, "", ""},
		"token that does not count, of alice":    {Request{Authorization: "Bearer x", TLS: alice}, "", ""},
		"other scheme, of root":                  {Request{Authorization: "Basic " + made.Token, Peer: &Peer{}}, "", ""},
		"root":                                   {Request{Peer: &Peer{}}, "user root", "admin in all namespaces"},
		"root before certificate":                {Request{Peer: &Peer{}, TLS: alice}, "user root", "admin in all namespaces"},
		"root with certificate that is wrong":    {Request{Peer: &Peer{}, TLS: wrong}, "", ""},
		"who started the cluster":                {Request{Peer: &Peer{UID: starter}}, "user 4000000001", "admin in all namespaces"},
		"peer":                                   {Request{Peer: &Peer{UID: stranger}}, "user 4000000002", `viewer in namespace "stranger"`},
		"peer before certificate":                {Request{Peer: &Peer{UID: stranger}, TLS: alice}, "user 4000000002", `viewer in namespace "stranger"`},
		"peer without binding":                   {Request{Peer: &Peer{UID: stranger + 1}}, "user 4000000003", "no role"},
		"certificate of a user":                  {Request{TLS: alice}, "user alice", `viewer in namespace "alice"`},
		"certificate of nobody":                  {Request{TLS: nameless}, "", ""},
		"certificate of this cluster's workload": {Request{TLS: cart(here)}, "serviceaccount shop/cart", `viewer in namespace "cart"`},
		"certificate of a peer's workload":       {Request{TLS: cart(peer)}, "", ""},
		"certificate that is wrong":              {Request{TLS: wrong}, "", ""},
		"TLS without certificate":                {Request{TLS: without}, "", ""},
		"nothing":                                {Request{}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := a.Caller(t.Context(), tc.request)
			var problem *client.Problem
			if tc.want == "" {
				if !errors.As(err, &problem) || problem.Status != http.StatusUnauthorized {
					t.Fatalf("got %v, %v, want a refusal", got, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != tc.want || got.Grants.String() != tc.roles {
				t.Errorf("%s with %s, want %s with %s", got, got.Grants, tc.want, tc.roles)
			}
		})
	}
}
