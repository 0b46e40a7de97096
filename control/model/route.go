package model

import (
	"time"
)

// GatewayMesh stands for all sidecars in a list of gateways.
const GatewayMesh = "mesh"

// Routes is one set of routes for some hosts.
type Routes struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Hosts are full names, "*.suffix" or "*".
	Hosts []string `json:"hosts"`
	// Gateways that the routes are bound to: namespace/name, "mesh" for sidecars, or the names of servers (see
	// [Gateway.ServerName]).
	Gateways []string `json:"gateways"`
	// Ports of the service that is the host, for whose callers alone the routes hold; none for all ports. Ranked sets for sidecars
	// name one service as their host, and its ports; those that are not exported to all namespaces go before the others.
	Ports []uint16 `json:"ports,omitempty"`
	// Ranked says that the most specific match of all such sets for a host holds (see [CompareMatches]), not the first.
	Ranked   bool        `json:"ranked,omitempty"`
	HTTP     []HTTPRoute `json:"http,omitempty"`
	TCP      []TCPRoute  `json:"tcp,omitempty"`
	ExportTo Visibility  `json:"exportTo,omitzero"`
	Source   Source      `json:"source"`
}

// OfService is the host of the service that the routes are attached to, empty for those that are bound otherwise.
func (r *Routes) OfService() string {
	if r.Ranked && len(r.Ports) > 0 {
		return r.Hosts[0]
	}
	return ""
}

// HTTPRoute says what happens to the requests that it matches. Exactly one of Forward, Redirect and Direct is set.
type HTTPRoute struct {
	Name string `json:"name,omitempty"`
	// Matches, of which one must hold; none matches every request.
	Matches  []HTTPMatch   `json:"matches,omitempty"`
	Forward  []Destination `json:"forward,omitempty"`
	Redirect *Redirect     `json:"redirect,omitempty"`
	Direct   *Direct       `json:"direct,omitempty"`
	Rewrite  *Rewrite      `json:"rewrite,omitempty"`
	// Timeout of the whole request; zero means none, Istio's default.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Retry; nil means the mesh's default.
	Retry    *Retry    `json:"retry,omitempty"`
	Request  HeaderOps `json:"request,omitzero"`
	Response HeaderOps `json:"response,omitzero"`
	Fault    *Fault    `json:"fault,omitempty"`
	CORS     *CORS     `json:"cors,omitempty"`
	// Mirrors get copies of the requests; their answers are dropped.
	Mirrors []Mirror `json:"mirrors,omitempty"`
	// MissingStatus answers requests to destinations that are missing; zero means 503, the other is 500.
	MissingStatus uint32 `json:"missingStatus,omitempty"`
	Source        Source `json:"source"`
}

// MatchKind is how a string is compared.
type MatchKind string

// Ways to compare.
const (
	Exact  MatchKind = "exact"
	Prefix MatchKind = "prefix"
	// Segments is a prefix of whole path segments, without a slash at the end: /a covers /a and /a/b, not /ab.
	Segments MatchKind = "segments"
	// Regex is RE2 and must match the whole value.
	Regex MatchKind = "regex"
	// Present matches any value.
	Present MatchKind = "present"
)

// StringMatch compares a string.
type StringMatch struct {
	Kind  MatchKind `json:"kind"`
	Value string    `json:"value,omitempty"`
}

// NamedMatch compares a header or a query parameter.
type NamedMatch struct {
	Name  string      `json:"name"`
	Match StringMatch `json:"match"`
	// Not inverts the match.
	Not bool `json:"not,omitempty"`
}

// ClaimMatch compares a claim of a verified token: its text, or a text of its list.
type ClaimMatch struct {
	// Claim is its name, within those of the claims around it.
	Claim []string    `json:"claim"`
	Match StringMatch `json:"match"`
	// Not inverts the match.
	Not bool `json:"not,omitempty"`
}

// HTTPMatch holds when all that it sets holds.
type HTTPMatch struct {
	Name string `json:"name,omitempty"`
	// Path without query.
	Path           *StringMatch `json:"path,omitempty"`
	IgnorePathCase bool         `json:"ignorePathCase,omitempty"`
	// Headers, pseudo headers (:method, :scheme, :authority) included.
	Headers []NamedMatch `json:"headers,omitempty"`
	Query   []NamedMatch `json:"query,omitempty"`
	// Claims can hold at gateways only, which choose the route again once tokens are verified.
	Claims []ClaimMatch `json:"claims,omitempty"`
	Scope  Scope        `json:"scope,omitzero"`
}

// Scope is where a match holds at all; it is decided when the configuration is made, not per request.
type Scope struct {
	// Port that the client dialled; zero for any.
	Port uint16 `json:"port,omitempty"`
	// SourceLabels of the calling workload.
	SourceLabels map[string]string `json:"sourceLabels,omitempty"`
	// SourceNamespace of the calling workload.
	SourceNamespace string `json:"sourceNamespace,omitempty"`
	// Gateways instead of the set's own; empty for those.
	Gateways []string `json:"gateways,omitempty"`
}

// Destination is where traffic goes, with its share.
type Destination struct {
	// Host is the full name of a service.
	Host string `json:"host"`
	Port uint16 `json:"port"`
	// Subset named by a destination policy; empty for all endpoints.
	Subset string `json:"subset,omitempty"`
	// Weight relative to the other destinations' weights; at least one is above zero.
	Weight uint32 `json:"weight"`
	// Missing says that the service, port or subset does not exist, or may not be used: requests are answered with 503, or
	// as the route says.
	Missing bool `json:"missing,omitempty"`
	// NotGranted says that it is missing because the routes may not use it, though others may.
	NotGranted bool `json:"notGranted,omitempty"`
	// Request and Response headers of what goes to this destination; for HTTP only, and where there are several.
	Request  HeaderOps `json:"request,omitzero"`
	Response HeaderOps `json:"response,omitzero"`
}

// ChangesHeaders says whether the destination has header changes of its own.
func (d *Destination) ChangesHeaders() bool {
	return !d.Request.Empty() || !d.Response.Empty()
}

// Redirect answers with a Location.
type Redirect struct {
	Path       string `json:"path,omitempty"`
	PathPrefix string `json:"pathPrefix,omitempty"`
	Authority  string `json:"authority,omitempty"`
	Scheme     string `json:"scheme,omitempty"`
	Port       uint16 `json:"port,omitempty"`
	// SamePort keeps the port that the client dialled, where the scheme leaves it open.
	SamePort bool `json:"samePort,omitempty"`
	// Status is 301, 302, 303, 307 or 308.
	Status uint32 `json:"status"`
}

// Direct answers at once.
type Direct struct {
	Status uint32 `json:"status"`
	Body   []byte `json:"body,omitempty"`
}

// Rewrite changes path or authority before the request is forwarded.
type Rewrite struct {
	// Path replaces the matched prefix, or the whole path of an exact match.
	Path string `json:"path,omitempty"`
	// Pattern and Substitution (with \1 references) replace by RE2.
	Pattern      string `json:"pattern,omitempty"`
	Substitution string `json:"substitution,omitempty"`
	Authority    string `json:"authority,omitempty"`
}

// Retry says when a request is tried again.
type Retry struct {
	// Attempts after the first; zero means none.
	Attempts uint32 `json:"attempts"`
	// PerTry bounds each try; zero means the route's timeout.
	PerTry time.Duration `json:"perTry,omitempty"`
	// On are Envoy's retry conditions; empty means Istio's default.
	On []string `json:"on,omitempty"`
	// Statuses that are tried again.
	Statuses []uint32 `json:"statuses,omitempty"`
	// Backoff is the base interval; zero means the proxy's default of 25 ms.
	Backoff time.Duration `json:"backoff,omitempty"`
	// SameHost allows the next try to go to the same endpoint.
	SameHost bool `json:"sameHost,omitempty"`
}

// HeaderOps change headers: first Remove, then Set, then Add; sorted by name.
type HeaderOps struct {
	Set    []Header `json:"set,omitempty"`
	Add    []Header `json:"add,omitempty"`
	Remove []string `json:"remove,omitempty"`
}

// Empty says that nothing is changed.
func (o HeaderOps) Empty() bool { return len(o.Set)+len(o.Add)+len(o.Remove) == 0 }

// Header is a name and a value.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// TCPRoute says where the connections go that it matches.
type TCPRoute struct {
	// Matches, of which one must hold; none matches every connection.
	Matches []Scope       `json:"matches,omitempty"`
	Forward []Destination `json:"forward"`
	Source  Source        `json:"source"`
}
