package model

import (
	"cmp"
	"slices"
	"time"
)

// Authentication says whose tokens a workload takes: what clients send must be good, and who sends none is let through.
type Authentication struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Selector of workloads; empty for the whole namespace, or the whole mesh in the root namespace.
	Selector map[string]string `json:"selector,omitempty"`
	Issuers  []TokenIssuer     `json:"issuers,omitempty"`
	Source   Source            `json:"source"`
}

// TokenIssuer issues JSON Web Tokens.
type TokenIssuer struct {
	// Issuer as tokens name it (iss).
	Issuer string `json:"issuer"`
	// Audiences of which a token must have one; none means any.
	Audiences []string `json:"audiences,omitempty"`
	// Keys is a JSON Web Key Set; empty when it is fetched.
	Keys string `json:"keys,omitempty"`
	// Fetch is where proxies get it from, nil for Keys.
	Fetch *KeysSource `json:"fetch,omitempty"`
	// FromHeaders, FromParams and FromCookies are where tokens are looked for; all empty means a bearer token in
	// Authorization, or the parameter access_token.
	FromHeaders []TokenHeader `json:"fromHeaders,omitempty"`
	FromParams  []string      `json:"fromParams,omitempty"`
	FromCookies []string      `json:"fromCookies,omitempty"`
	// Forward leaves the token in the request.
	Forward bool `json:"forward,omitempty"`
	// PayloadHeader gets the claims as they came, in base64url; empty for none.
	PayloadHeader string `json:"payloadHeader,omitempty"`
	// ClaimHeaders get single claims.
	ClaimHeaders []ClaimHeader `json:"claimHeaders,omitempty"`
	// ListClaims are texts that are lists, separated by blanks.
	ListClaims []string `json:"listClaims,omitempty"`
}

// KeysSource is where proxies fetch keys.
type KeysSource struct {
	URI string `json:"uri"`
	// Service of the mesh; empty for a host outside of it, whose certificate is of one of the system's authorities.
	Service string `json:"service,omitempty"`
	// Host outside of the mesh, a name or an address; empty for a service.
	Host string `json:"host,omitempty"`
	Port uint16 `json:"port"`
	// Timeout of a fetch; zero for the default.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// TokenHeader is a header with a token behind a prefix.
type TokenHeader struct {
	Name   string `json:"name"`
	Prefix string `json:"prefix,omitempty"`
}

// ClaimHeader is a header that gets a claim.
type ClaimHeader struct {
	Name  string `json:"name"`
	Claim string `json:"claim"`
}

// AuthenticationsFor lists what holds for a workload, that of the root namespace included.
func (m *Mesh) AuthenticationsFor(namespace string, labels map[string]string) []*Authentication {
	var out []*Authentication
	for _, a := range m.Authentications {
		if (a.Namespace == namespace || a.Namespace == m.Settings.RootNamespace) && Selects(a.Selector, labels) {
			out = append(out, a)
		}
	}
	return out
}

// Issuers are those of several rules, sorted by name as in Istio.
func Issuers(all []*Authentication) []TokenIssuer {
	var out []TokenIssuer
	for _, a := range all {
		out = append(out, a.Issuers...)
	}
	slices.SortStableFunc(out, func(x, y TokenIssuer) int { return cmp.Compare(x.Issuer, y.Issuer) })
	return out
}
