package objects

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	networkingv1alpha3 "istio.io/client-go/pkg/apis/networking/v1alpha3"

	"heddle.io/heddle/control/envoyapi"
	"heddle.io/heddle/control/peer"
)

// envoyFilterTreatments are what becomes of the fields of EnvoyFilter.
var envoyFilterTreatments = map[string]fields{
	"istio.networking.v1alpha3.EnvoyFilter":                              {translated: []string{"workloadSelector", "targetRefs", "configPatches", "priority"}},
	"istio.networking.v1alpha3.EnvoyFilter.EnvoyConfigObjectPatch":       {translated: []string{"applyTo", "match", "patch"}},
	"istio.networking.v1alpha3.EnvoyFilter.Patch":                        {translated: []string{"operation", "value", "filterClass"}},
	"istio.networking.v1alpha3.EnvoyFilter.ProxyMatch":                   {translated: []string{"proxyVersion", "metadata"}},
	"istio.networking.v1alpha3.EnvoyFilter.ClusterMatch":                 {translated: []string{"portNumber", "service", "subset", "name"}},
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch.FilterMatch":    {translated: []string{"name", "subFilter"}},
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch.SubFilterMatch": {translated: []string{"name"}},
	"istio.networking.v1alpha3.EnvoyFilter.EnvoyConfigObjectMatch": {
		translated: []string{"context", "proxy", "listener", "routeConfiguration", "cluster"},
		refused:    map[string]string{"waypoint": "match listener, routeConfiguration or cluster; there are no waypoints"},
	},
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch": {
		translated: []string{"portNumber", "filterChain", "listenerFilter", "name"},
		refused:    map[string]string{"portName": "write the number in portNumber; Istio documents this field and does not look at it"},
	},
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch.FilterChainMatch": {
		translated: []string{"name", "sni", "transportProtocol", "applicationProtocols", "filter", "destinationPort"},
	},
	"istio.networking.v1alpha3.EnvoyFilter.WaypointMatch":                            noWaypoints("portNumber", "route", "filter"),
	"istio.networking.v1alpha3.EnvoyFilter.WaypointMatch.RouteMatch":                 noWaypoints("name"),
	"istio.networking.v1alpha3.EnvoyFilter.WaypointMatch.FilterMatch":                noWaypoints("name", "subFilter"),
	"istio.networking.v1alpha3.EnvoyFilter.WaypointMatch.FilterMatch.SubFilterMatch": noWaypoints("name"),
	"istio.networking.v1alpha3.EnvoyFilter.RouteConfigurationMatch":                  {translated: []string{"portNumber", "portName", "gateway", "vhost", "name"}},
	"istio.networking.v1alpha3.EnvoyFilter.RouteConfigurationMatch.VirtualHostMatch": {translated: []string{"name", "domainName", "route"}},
	"istio.networking.v1alpha3.EnvoyFilter.RouteConfigurationMatch.RouteMatch":       {translated: []string{"name", "action"}},
}

func noWaypoints(names ...string) fields {
	out := fields{refused: map[string]string{}}
	for _, name := range names {
		out.refused[name] = "remove it; there are no waypoints"
	}
	return out
}

// Bounds of an EnvoyFilter: each patch is held against each resource of each proxy that it selects.
const (
	maxPatches    = 512
	maxPatchValue = 1 << 20
)

const hcmFilter = "envoy.filters.network.http_connection_manager"

func (c *checker) envoyFilter(r *networkingv1alpha3.EnvoyFilter) {
	for _, key := range slices.Sorted(maps.Keys(r.Spec.GetWorkloadSelector().GetLabels())) {
		if strings.Contains(key+r.Spec.GetWorkloadSelector().GetLabels()[key], "*") {
			c.fail(joinKey("spec.workloadSelector.labels", key), "has a wildcard", "write the label as workloads have it")
		}
	}
	c.labels("spec.workloadSelector.labels", r.Spec.GetWorkloadSelector().GetLabels())
	if r.Spec.GetWorkloadSelector() != nil && len(r.Spec.GetTargetRefs()) > 0 {
		c.fail("spec.targetRefs", "contradicts workloadSelector", "leave one of the two")
	}
	for i, ref := range r.Spec.GetTargetRefs() {
		path := fmt.Sprintf("spec.targetRefs[%d]", i)
		if ref.GetGroup() != "gateway.networking.k8s.io" || ref.GetKind() != "Gateway" {
			c.fail(path+".kind", fmt.Sprintf("%q of %q cannot be a target", ref.GetKind(), ref.GetGroup()),
				"name a Gateway of gateway.networking.k8s.io, or select workloads by their labels in workloadSelector")
		}
		if ref.GetName() == "" {
			c.fail(path+".name", "is empty", "name the Gateway")
		}
		if ref.GetNamespace() != "" && ref.GetNamespace() != r.GetNamespace() {
			c.fail(path+".namespace", "is another one than the EnvoyFilter's", "put the EnvoyFilter into the Gateway's namespace")
		}
	}
	if n := len(r.Spec.GetConfigPatches()); n > maxPatches {
		c.fail("spec.configPatches", fmt.Sprintf("has %d patches, more than %d", n, maxPatches), "split it into several EnvoyFilters")
		return
	}
	for i, p := range r.Spec.GetConfigPatches() {
		c.configPatch(fmt.Sprintf("spec.configPatches[%d]", i), p)
	}
}

func (c *checker) configPatch(at string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	switch p.GetApplyTo() {
	case networking.EnvoyFilter_INVALID:
		c.fail(at+".applyTo", "missing", "say what is patched, such as HTTP_FILTER, CLUSTER or LISTENER")
		return
	case networking.EnvoyFilter_BOOTSTRAP:
		c.fail(at+".applyTo", "BOOTSTRAP is not supported: the agent writes a proxy's bootstrap before it has any configuration",
			"choose the engine for regular expressions with heddle up --regex-engine; patch another part, or give a proxy of your own its bootstrap")
		return
	case networking.EnvoyFilter_EXTENSION_CONFIG:
		c.fail(at+".applyTo", "EXTENSION_CONFIG is not supported: extensions are not sent apart from the filters that name them",
			"write the filter's typed_config into a patch of HTTP_FILTER or NETWORK_FILTER")
		return
	}
	c.patchMatch(at, p)
	operation := p.GetPatch().GetOperation()
	if p.GetPatch() == nil || operation == networking.EnvoyFilter_Patch_INVALID {
		c.fail(at+".patch.operation", "missing", "say what is done, such as MERGE, ADD or INSERT_BEFORE")
		return
	}
	if !operationFits(p.GetApplyTo(), operation) {
		c.fail(at+".patch.operation", fmt.Sprintf("%s is not possible for %s", operation, p.GetApplyTo()), "use one of "+possible(p.GetApplyTo()))
		return
	}
	if p.GetPatch().GetFilterClass() != networking.EnvoyFilter_Patch_UNSPECIFIED &&
		(operation != networking.EnvoyFilter_Patch_ADD || p.GetApplyTo() != networking.EnvoyFilter_HTTP_FILTER) {
		c.fail(at+".patch.filterClass", "goes with ADD of an HTTP_FILTER only", "remove it")
	}
	value := p.GetPatch().GetValue()
	if operation == networking.EnvoyFilter_Patch_REMOVE {
		if value != nil {
			c.ignored = append(c.ignored, FieldMessage{Path: at + ".patch.value", Message: "ignored: REMOVE needs no value"})
		}
		return
	}
	if value == nil {
		c.fail(at+".patch.value", "missing", fmt.Sprintf("%s needs one", operation))
		return
	}
	text, err := PatchValue(p)
	if err == nil && len(text) > maxPatchValue {
		err = fmt.Errorf("it is longer than %d bytes", maxPatchValue)
	}
	message := envoyapi.Subject(p.GetApplyTo().String())
	if err == nil {
		err = envoyapi.Decode(text, message)
	}
	if err == nil && operation != networking.EnvoyFilter_Patch_MERGE && operation != networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST {
		// What is merged need not be whole.
		err = envoyapi.Check(message)
	}
	if named, is := message.(interface{ GetName() string }); err == nil && is && len(named.GetName()) > peer.MaxName {
		// Proxies would name it, and be cut off.
		err = fmt.Errorf("its name is longer than %d bytes", peer.MaxName)
	}
	if err != nil {
		c.fail(at+".patch.value", "is refused: "+err.Error(), "write it as Envoy's API has it (github.com/envoyproxy/go-control-plane/envoy v1.40)")
	}
}

// PatchValue is the value of a patch as JSON, the same text for equal values.
func PatchValue(p *networking.EnvoyFilter_EnvoyConfigObjectPatch) ([]byte, error) {
	if p.GetPatch().GetValue() == nil {
		return nil, nil
	}
	text, err := json.Marshal(p.GetPatch().GetValue().AsMap())
	if err != nil {
		return nil, fmt.Errorf("it is no JSON: %w", err)
	}
	return text, nil
}

func (c *checker) patchMatch(at string, p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	m := p.GetMatch()
	if m.GetContext() == networking.EnvoyFilter_WAYPOINT {
		c.fail(at+".match.context", "WAYPOINT is not supported", "there are no waypoints; use SIDECAR_INBOUND for what comes to workloads")
	}
	if version := m.GetProxy().GetProxyVersion(); version != "" {
		c.ownRegex(at+".match.proxy.proxyVersion", version)
	}
	var is string
	switch m.GetObjectTypes().(type) {
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Listener:
		is = "listener"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_RouteConfiguration:
		is = "routeConfiguration"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Cluster:
		is = "cluster"
	default:
		return
	}
	if want := matchOf(p.GetApplyTo()); is != want {
		c.fail(at+".match."+is, fmt.Sprintf("says nothing of %s", p.GetApplyTo()), "match by "+want)
		return
	}
	chain := m.GetListener().GetFilterChain()
	if chain.GetFilter() == nil {
		return
	}
	filter, path := chain.GetFilter(), at+".match.listener.filterChain.filter"
	switch {
	case filter.GetName() == "":
		c.fail(path+".name", "is empty", "name the network filter, such as "+hcmFilter)
	case p.GetApplyTo() == networking.EnvoyFilter_HTTP_FILTER && filter.GetName() != hcmFilter:
		c.fail(path+".name", fmt.Sprintf("%q has no HTTP filters", filter.GetName()), "write "+hcmFilter)
	case filter.GetSubFilter() != nil && p.GetApplyTo() != networking.EnvoyFilter_HTTP_FILTER:
		c.fail(path+".subFilter", fmt.Sprintf("says nothing of %s", p.GetApplyTo()), "apply the patch to HTTP_FILTER, or remove it")
	case filter.GetSubFilter() != nil && filter.GetSubFilter().GetName() == "":
		c.fail(path+".subFilter.name", "is empty", "name the HTTP filter, such as envoy.filters.http.router")
	}
}

// matchOf is the kind of match that goes with what is patched.
func matchOf(applyTo networking.EnvoyFilter_ApplyTo) string {
	switch applyTo {
	case networking.EnvoyFilter_CLUSTER:
		return "cluster"
	case networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE:
		return "routeConfiguration"
	}
	return "listener"
}

// operationFits says whether an operation does anything to what is patched, as in Istio, where INSERT_* of what has no order is
// ADD.
func operationFits(applyTo networking.EnvoyFilter_ApplyTo, operation networking.EnvoyFilter_Patch_Operation) bool {
	switch operation {
	case networking.EnvoyFilter_Patch_MERGE, networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST:
		return applyTo != networking.EnvoyFilter_LISTENER_FILTER
	case networking.EnvoyFilter_Patch_REPLACE:
		return slices.Contains([]networking.EnvoyFilter_ApplyTo{
			networking.EnvoyFilter_HTTP_FILTER, networking.EnvoyFilter_NETWORK_FILTER, networking.EnvoyFilter_LISTENER_FILTER, networking.EnvoyFilter_VIRTUAL_HOST,
		}, applyTo)
	}
	return applyTo != networking.EnvoyFilter_ROUTE_CONFIGURATION
}

func possible(applyTo networking.EnvoyFilter_ApplyTo) string {
	var out []string
	for _, number := range slices.Sorted(maps.Keys(networking.EnvoyFilter_Patch_Operation_name)) {
		if operation := networking.EnvoyFilter_Patch_Operation(number); number > 0 && operationFits(applyTo, operation) {
			out = append(out, operation.String())
		}
	}
	return strings.Join(out, ", ")
}
