package access

import (
	"context"
	"crypto/x509"
	"strings"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/store"
)

// Authenticator tells who calls.
type Authenticator struct {
	Store    store.Store
	Bindings *Bindings
	Tokens   *Tokens
	// Owner, when not zero, is the user of this machine who started the cluster: an admin, as root is.
	Owner int
	// TrustDomain of the mesh's identities, and Issuers that may vouch for service accounts: this cluster, not its peers.
	TrustDomain string
	Issuers     func() []cluster.Issuer
}

// Request is what is known of a request before anything of it was believed.
type Request struct {
	// Peer of a unix socket, or nil.
	Peer *Peer
	// TLS verifies the client's certificate. It gives the chain, leaf first, with its root, empty when there is none; and
	// whether the authority that names users signed it. nil without TLS.
	TLS func() (chain []*x509.Certificate, user bool, err error)
	// From is the address of a remote caller.
	From string
	// Authorization is the header of that name.
	Authorization string
}

// Caller tells who sent a request, with all roles. A token goes before everything else: who shows one wants to be known by
// it. The error is a [*client.Problem] with status 401, or the store's.
func (a *Authenticator) Caller(ctx context.Context, r Request) (*Caller, error) {
	if r.Authorization != "" {
		scheme, token, _ := strings.Cut(r.Authorization, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return nil, unauthorized("the API does not know this kind of credentials", "the header Authorization begins with another word than Bearer", "send `Authorization: Bearer <token>`")
		}
		c, err := a.Tokens.caller(ctx, strings.TrimSpace(token))
		if err == nil {
			c.From = r.from()
		}
		return c, err
	}
	var c *Caller
	chain, named, err := r.certificate()
	switch {
	case err != nil:
		return nil, err
	case r.Peer != nil:
		c = r.Peer.caller()
		if c.UID == 0 || a.Owner != 0 && c.UID == a.Owner {
			c.Grants = Grants{{Role: Admin, Namespace: Everywhere}}
			return c, nil
		}
	case len(chain) > 0:
		if c, err = a.certificate(chain[0], named, r.From); err != nil {
			return nil, err
		}
	default:
		return nil, unauthorized("the request does not say who sends it", "it has neither a token nor a client certificate", "send a token; "+anotherToken)
	}
	c.Grants, err = a.Bindings.of(ctx, a.Store, c)
	return c, err
}

func (r Request) from() string {
	if r.Peer != nil {
		return r.Peer.From()
	}
	return r.From
}

func (r Request) certificate() (chain []*x509.Certificate, user bool, err error) {
	if r.TLS == nil {
		return nil, false, nil
	}
	return r.TLS()
}

// certificate is who a verified certificate is of.
func (a *Authenticator) certificate(leaf *x509.Certificate, user bool, from string) (*Caller, error) {
	if user {
		if leaf.Subject.CommonName == "" {
			return nil, unauthorized("the client certificate names nobody", "its subject has no common name", "use a certificate whose common name is the user's")
		}
		return &Caller{Kind: KindUser, Name: leaf.Subject.CommonName, Groups: leaf.Subject.Organization, UID: -1, From: from}, nil
	}
	// Peers' intermediates may sign any identity; the DNS names say who signed it.
	if len(leaf.URIs) == 1 {
		identity := leaf.URIs[0].String()
		namespace, account, ok := cluster.AccountOf(a.TrustDomain, identity)
		for _, issuer := range a.Issuers() {
			if ok && issuer.Proves(a.TrustDomain, identity, leaf.DNSNames) {
				return &Caller{Kind: KindServiceAccount, Name: namespace + "/" + account, UID: -1, From: from}, nil
			}
		}
	}
	return nil, unauthorized("the client certificate is of nobody whom this cluster knows", "it is neither one of this cluster's workloads nor signed by the API's client authority", "send a token; "+anotherToken)
}
