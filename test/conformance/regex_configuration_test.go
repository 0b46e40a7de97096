//go:build conformance

package conformance

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"heddle.io/heddle/test/hostile/subject"
)

// groupSize is how many patterns stand in one virtual host. In larger ones the first match would nearly always be one of the
// first, and heddle-proxy's automaton over all of them would have new states for every text.
const groupSize = 24

// inFront is how many routes stand before those of a group. heddle-proxy tries the first ones of a set alone.
const inFront = 4

func at(address string, port int) map[string]any {
	return map[string]any{"socket_address": map[string]any{"address": address, "port_value": port}}
}

// listener with a route table.
func listener(address, name string, port int, hosts []any, filters ...any) map[string]any {
	return map[string]any{
		"name": name, "address": at(address, port),
		"filter_chains": []any{map[string]any{"filters": []any{map[string]any{
			"name": "envoy.filters.network.http_connection_manager",
			"typed_config": map[string]any{
				"@type":        "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
				"stat_prefix":  "random",
				"route_config": map[string]any{"name": "local", "virtual_hosts": hosts},
				"http_filters": append(filters, router),
			},
		}}}},
	}
}

func host(domain string, routes ...any) map[string]any {
	return map[string]any{"name": domain, "domains": []any{domain}, "routes": routes}
}

func matcher(pattern string) map[string]any {
	return map[string]any{"name": "x", "string_match": map[string]any{"safe_regex": map[string]any{"regex": pattern}}}
}

// route is taken where the field matches all patterns.
func route(patterns ...string) map[string]any { return namedRoute(matches, patterns...) }

func namedRoute(name string, patterns ...string) map[string]any {
	matchers := make([]any, 0, len(patterns))
	for _, p := range patterns {
		matchers = append(matchers, matcher(p))
	}
	return map[string]any{
		"match":           map[string]any{"prefix": "/", "headers": matchers},
		"direct_response": map[string]any{"status": 200, "body": map[string]any{"inline_string": name}},
	}
}

const rbac = "envoy.filters.http.rbac"

// rule refuses what matches the pattern, if the request asks for that rule.
func rule(name, pattern string) map[string]any {
	only := map[string]any{"name": "only", "string_match": map[string]any{"exact": name}}
	return map[string]any{
		"permissions": []any{map[string]any{"and_rules": map[string]any{"rules": []any{
			map[string]any{"header": matcher(pattern)}, map[string]any{"header": only},
		}}}},
		"principals": []any{map[string]any{"any": true}},
	}
}

// regexHosts have each pattern alone, groups of which the first match is taken, and groups in which each is asked for.
func regexHosts(patterns []string) []any {
	var hosts []any
	for i, p := range patterns {
		hosts = append(hosts, host(hostOf(alone, i), route(p)))
	}
	for from := 0; from < len(patterns); from += groupSize {
		var routes []any
		for i := range inFront {
			routes = append(routes, route("no value of the test "+strconv.Itoa(i)))
		}
		policies := map[string]any{}
		for i, p := range patterns[from:min(from+groupSize, len(patterns))] {
			name := strconv.Itoa(from + i)
			routes = append(routes, namedRoute(name, p))
			policies[name] = rule(name, p)
		}
		rules := host(hostOf(ruleOfGroup, from/groupSize), route())
		rules["typed_per_filter_config"] = map[string]any{rbac: map[string]any{
			"@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBACPerRoute",
			"rbac":  map[string]any{"rules": map[string]any{"action": "DENY", "policies": policies}},
		}}
		hosts = append(hosts, host(hostOf(firstOfGroup, from/groupSize), routes...), rules)
	}
	return hosts
}

// matching is a way in which a proxy matches.
type matching struct {
	name, proxy string
	// hyperscan is whether heddle-proxy looks with it.
	hyperscan bool
	// utf8 is whether Envoy reads text as such.
	utf8 bool
}

// startRegex starts a proxy in a configuration, to which it adds what the way of matching needs.
func startRegex(t *testing.T, m matching, address string, configuration map[string]any, listeners ...subject.Listener) (*subject.Proxy, error) {
	t.Helper()
	configuration["admin"] = map[string]any{"address": at(address, subject.AdminPort)}
	// As in the bootstraps that the controller writes (control/translate/bootstrap.go).
	runtime := map[string]any{"re2.max_program_size.error_level": 32768}
	if m.utf8 {
		runtime["envoy.reloadable_features.re2_use_latin1_mode"] = false
	}
	configuration["layered_runtime"] = map[string]any{"layers": []any{map[string]any{"name": "global", "static_layer": runtime}}}
	if m.hyperscan {
		configuration["default_regex_engine"] = map[string]any{
			"name":         "envoy.regex_engines.hyperscan",
			"typed_config": map[string]any{"@type": "type.googleapis.com/envoy.extensions.regex_engines.hyperscan.v3alpha.Hyperscan"},
		}
	}
	text, err := json.Marshal(configuration)
	if err != nil {
		return nil, err
	}
	return subject.Start(subject.Settings{Name: m.proxy, Binary: binaries[m.proxy], Address: address, Dir: t.TempDir(), Listeners: listeners,
		// It is a template, and JSON has two such braces in a row in its texts only.
		Configuration: strings.ReplaceAll(string(text), "{{", `{\u007b`)})
}

// startVerdicts starts a proxy that has all patterns.
func startVerdicts(t *testing.T, m matching, patterns []string) (*subject.Proxy, error) {
	t.Helper()
	address := subject.Address()
	filter := map[string]any{"name": rbac, "typed_config": map[string]any{"@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"}}
	l := listener(address, "random", firstPort, regexHosts(patterns), filter)
	return startRegex(t, m, address, map[string]any{"static_resources": map[string]any{"listeners": []any{l}}},
		subject.Listener{Name: "random", Port: firstPort})
}
