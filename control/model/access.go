package model

import (
	"net/netip"
	"slices"
	"strings"
)

// AccessAction is what a policy does with what it matches.
type AccessAction string

// Actions.
const (
	Allow AccessAction = "ALLOW"
	Deny  AccessAction = "DENY"
	// Audit marks a request for logs and lets it through.
	Audit AccessAction = "AUDIT"
	// Custom leaves the decision to an authorizer, before all others.
	Custom AccessAction = "CUSTOM"
)

// AccessPolicy says who may call a workload, and what.
type AccessPolicy struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Selector of workloads; empty for the whole namespace, or the whole mesh in the root namespace.
	Selector map[string]string `json:"selector,omitempty"`
	Action   AccessAction      `json:"action"`
	// Rules, of which one must match; none never matches.
	Rules []AccessRule `json:"rules,omitempty"`
	// Authorizer decides about what a [Custom] policy matches; nil refuses it.
	Authorizer *Authorizer `json:"authorizer,omitempty"`
	Source     Source      `json:"source"`
}

// AccessRule matches when one of From (if any), one of To (if any) and all of When do.
type AccessRule struct {
	From []AccessFrom `json:"from,omitempty"`
	To   []AccessTo   `json:"to,omitempty"`
	When []Condition  `json:"when,omitempty"`
}

// Values are patterns of which one must match, and patterns of which none may.
type Values[T any] struct {
	In  []T `json:"in,omitempty"`
	Not []T `json:"not,omitempty"`
}

// Empty says that nothing is asked.
func (v Values[T]) Empty() bool { return len(v.In) == 0 && len(v.Not) == 0 }

// Account is a service account of a namespace.
type Account struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// AccessFrom matches a caller. Patterns are Istio's: exact, "prefix*", "*suffix", "*".
type AccessFrom struct {
	// Principals without the scheme: <trust domain>/ns/<namespace>/sa/<account>.
	Principals Values[string]       `json:"principals,omitzero"`
	Namespaces Values[string]       `json:"namespaces,omitzero"`
	Accounts   Values[Account]      `json:"accounts,omitzero"`
	IPs        Values[netip.Prefix] `json:"ips,omitzero"`
	RemoteIPs  Values[netip.Prefix] `json:"remoteIPs,omitzero"`
	// RequestPrincipals are issuer/subject of verified tokens.
	RequestPrincipals Values[string] `json:"requestPrincipals,omitzero"`
}

// NeedsHTTP says whether any of it can be told of requests only.
func (f AccessFrom) NeedsHTTP() bool { return !f.RequestPrincipals.Empty() }

// AccessTo matches a request or a connection.
type AccessTo struct {
	Hosts   Values[string] `json:"hosts,omitzero"`
	Ports   Values[uint16] `json:"ports,omitzero"`
	Methods Values[string] `json:"methods,omitzero"`
	Paths   Values[string] `json:"paths,omitzero"`
}

// NeedsHTTP says whether any of it can be told of requests only.
func (t AccessTo) NeedsHTTP() bool { return !t.Hosts.Empty() || !t.Methods.Empty() || !t.Paths.Empty() }

// ConditionKind is what a condition looks at.
type ConditionKind string

// Kinds of conditions.
const (
	OnHeader          ConditionKind = "header"
	OnSourceIP        ConditionKind = "source.ip"
	OnRemoteIP        ConditionKind = "remote.ip"
	OnSourceNamespace ConditionKind = "source.namespace"
	OnPrincipal       ConditionKind = "source.principal"
	OnAccount         ConditionKind = "source.serviceAccount"
	OnDestinationIP   ConditionKind = "destination.ip"
	OnDestinationPort ConditionKind = "destination.port"
	OnServerName      ConditionKind = "connection.sni"
	// OnCluster looks at the cluster whose authority issued the caller's certificate.
	OnCluster ConditionKind = "source.cluster"
	// Of verified tokens: issuer/subject, who it is for, who it was issued to, any claim.
	OnRequestPrincipal ConditionKind = "request.auth.principal"
	OnAudiences        ConditionKind = "request.auth.audiences"
	OnPresenter        ConditionKind = "request.auth.presenter"
	OnClaim            ConditionKind = "request.auth.claims"
)

// Condition is one further demand. The values' form follows the kind and has been checked.
type Condition struct {
	Kind ConditionKind `json:"kind"`
	// Header's name, for OnHeader.
	Header string `json:"header,omitempty"`
	// Claim, for OnClaim: its name, within those of the claims around it.
	Claim []string `json:"claim,omitempty"`
	// Values for the kinds with patterns.
	Values Values[string] `json:"values,omitzero"`
	// IPs for the kinds with addresses.
	IPs Values[netip.Prefix] `json:"ips,omitzero"`
	// Ports for OnDestinationPort.
	Ports Values[uint16] `json:"ports,omitzero"`
	// Accounts for OnAccount.
	Accounts Values[Account] `json:"accounts,omitzero"`
}

// NeedsHTTP says whether it can be told of requests only.
func (c Condition) NeedsHTTP() bool {
	switch c.Kind {
	case OnHeader, OnRequestPrincipal, OnAudiences, OnPresenter, OnClaim:
		return true
	}
	return false
}

// AccessFor lists the policies for a workload, those of the root namespace included. It looks at those of the two namespaces alone.
func (m *Mesh) AccessFor(namespace string, labels map[string]string) []*AccessPolicy {
	spaces := []string{namespace, m.Settings.RootNamespace}
	slices.Sort(spaces)
	var out []*AccessPolicy
	for _, space := range slices.Compact(spaces) {
		at, _ := slices.BinarySearchFunc(m.Access, space, func(p *AccessPolicy, want string) int { return strings.Compare(p.Namespace, want) })
		for ; at < len(m.Access) && m.Access[at].Namespace == space; at++ {
			if Selects(m.Access[at].Selector, labels) {
				out = append(out, m.Access[at])
			}
		}
	}
	return out
}
