package model

import (
	"cmp"
	"encoding/json"
	"regexp"
	"slices"
)

// EnvoyFilter changes what proxies are sent (Istio's EnvoyFilter). The model knows whom it is for and what it is held against;
// what is changed, and into what, are the proxies' own terms.
type EnvoyFilter struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Selectors of proxies, of which one must hold; none means all of the namespace, or of the mesh in the root namespace.
	Selectors []map[string]string `json:"selectors,omitempty"`
	// Priority orders EnvoyFilters, the lowest first. Default 0.
	Priority int32    `json:"priority,omitempty"`
	Patches  []*Patch `json:"patches,omitempty"`
	Source   Source   `json:"source"`
}

// Patch is one change of an [EnvoyFilter]. Names of what is patched, of contexts and operations are those of Istio's API.
type Patch struct {
	// ApplyTo is the part of a configuration, such as "HTTP_FILTER".
	ApplyTo string `json:"applyTo"`
	// Context is "SIDECAR_INBOUND", "SIDECAR_OUTBOUND", "GATEWAY", or "ANY".
	Context string `json:"context"`
	// Proxy limits the proxies; nil for all.
	Proxy *PatchProxy `json:"proxy,omitempty"`
	// Listener, Routes and Cluster are what is patched; at most one is set, and none means everything of ApplyTo.
	Listener *PatchListener `json:"listener,omitempty"`
	Routes   *PatchRoutes   `json:"routes,omitempty"`
	Cluster  *PatchCluster  `json:"cluster,omitempty"`
	// Operation is "MERGE", "ADD", "REMOVE", "INSERT_BEFORE" and so on.
	Operation string `json:"operation"`
	// FilterClass is where ADD puts an HTTP filter: behind those of "AUTHN" or "AUTHZ", before "STATS"; empty for the end.
	FilterClass string `json:"filterClass,omitempty"`
	// Value is a message of what ApplyTo names, as JSON; empty for REMOVE.
	Value json.RawMessage `json:"value,omitempty"`
	// Source is the patch's place in its object.
	Source Source `json:"source"`
}

// PatchProxy says which proxies a patch is for.
type PatchProxy struct {
	// Version is a regular expression that what a proxy says in ISTIO_VERSION must match; empty for any.
	Version string `json:"version,omitempty"`
	// Metadata that a node must have.
	Metadata map[string]string `json:"metadata,omitempty"`

	version *regexp.Regexp
}

// NewPatchProxy makes the condition. A version that is no regular expression matches none: its form was checked.
func NewPatchProxy(version string, metadata map[string]string) *PatchProxy {
	out := &PatchProxy{Version: version, Metadata: metadata}
	if version != "" {
		out.version, _ = regexp.Compile(version)
	}
	return out
}

// MatchesVersion says whether a proxy may be of that version, empty for one that tells none, which only matches any.
func (p *PatchProxy) MatchesVersion(version string) bool {
	return p.Version == "" || version != "" && p.version != nil && p.version.MatchString(version)
}

// PatchListener says which listeners, filter chains and filters a patch is for. What is empty, or 0, matches all.
type PatchListener struct {
	Name string `json:"name,omitempty"`
	Port uint32 `json:"port,omitempty"`
	// ListenerFilter is the name of a listener filter.
	ListenerFilter string `json:"listenerFilter,omitempty"`
	// Chain is the name of a filter chain; ServerName, Transport, Protocols and ChainPort are parts of its match.
	Chain      string   `json:"chain,omitempty"`
	ServerName string   `json:"serverName,omitempty"`
	Transport  string   `json:"transport,omitempty"`
	Protocols  []string `json:"protocols,omitempty"`
	ChainPort  uint32   `json:"chainPort,omitempty"`
	// Filter and HTTPFilter are the names of a network filter and of an HTTP filter in it.
	Filter     string `json:"filter,omitempty"`
	HTTPFilter string `json:"httpFilter,omitempty"`
}

// PatchRoutes says which route tables, virtual hosts and routes a patch is for. What is empty, or 0, matches all.
type PatchRoutes struct {
	Name string `json:"name,omitempty"`
	Port uint32 `json:"port,omitempty"`
	// PortName and Gateway ("namespace/name") are of a gateway's server.
	PortName string `json:"portName,omitempty"`
	Gateway  string `json:"gateway,omitempty"`
	// Host and Domain are the name of a virtual host and one of its domains.
	Host   string `json:"host,omitempty"`
	Domain string `json:"domain,omitempty"`
	// ByRoute says that single routes are matched; Route is a name, Action "ROUTE", "REDIRECT" or "DIRECT_RESPONSE".
	ByRoute bool   `json:"byRoute,omitempty"`
	Route   string `json:"route,omitempty"`
	Action  string `json:"action,omitempty"`
}

// PatchCluster says which clusters a patch is for. What is empty, or 0, matches all; Name goes before the others.
type PatchCluster struct {
	Name    string `json:"name,omitempty"`
	Service string `json:"service,omitempty"`
	Subset  string `json:"subset,omitempty"`
	Port    uint32 `json:"port,omitempty"`
}

// Selects says whether an EnvoyFilter is for proxies with these labels in a namespace of a mesh with that root namespace.
func (f *EnvoyFilter) Selects(root, namespace string, labels map[string]string) bool {
	return (f.Namespace == namespace || f.Namespace == root) &&
		(len(f.Selectors) == 0 || slices.ContainsFunc(f.Selectors, func(s map[string]string) bool { return Selects(s, labels) }))
}

// ComparePriority orders EnvoyFilters as Istio does, but for their age.
func ComparePriority(root string, x, y *EnvoyFilter, age int) int {
	local := func(f *EnvoyFilter) int {
		if f.Namespace == root {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(x.Priority, y.Priority), cmp.Compare(local(x), local(y)), age, cmp.Compare(x.Name+"."+x.Namespace, y.Name+"."+y.Namespace))
}
