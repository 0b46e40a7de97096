package patch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"heddle.io/heddle/control/envoyapi"
	"heddle.io/heddle/control/model"
)

// TestTableNames: tables of sidecars are called after their port, those of gateways after the server, those of servers after the
// cluster.
func TestTableNames(t *testing.T) {
	for _, c := range []struct {
		match   model.PatchRoutes
		gateway bool
		table   string
		want    bool
	}{
		{model.PatchRoutes{}, false, "80", true},
		{model.PatchRoutes{Port: 80}, false, "80", true},
		{model.PatchRoutes{Port: 81}, false, "80", false},
		{model.PatchRoutes{Port: 8080}, false, "inbound|8080||", true},
		{model.PatchRoutes{Name: "inbound|8080||"}, false, "inbound|8080||", true},
		{model.PatchRoutes{Port: 80, PortName: "not of sidecars"}, false, "80", true},
		{model.PatchRoutes{Port: 80}, true, "http.80", true},
		{model.PatchRoutes{PortName: "web"}, true, "http.80", false},
		{model.PatchRoutes{Port: 443, PortName: "web", Gateway: "shop/edge"}, true, "https.443.web.edge.shop", true},
		{model.PatchRoutes{Gateway: "shop/edge.v2"}, true, "https.443.web.edge.v2.shop", true},
		{model.PatchRoutes{Gateway: "shop/other"}, true, "https.443.web.edge.shop", false},
	} {
		if got := matchesTable(&Patch{Patch: &model.Patch{Routes: &c.match}}, c.gateway, c.table); got != c.want {
			t.Errorf("%+v, %s: %v", c.match, c.table, got)
		}
	}
}

func merge(value string) *model.Patch {
	return &model.Patch{ApplyTo: "CLUSTER", Context: "ANY", Operation: "MERGE", Value: []byte(value)}
}

// TestWhatBreaksIsLeftOut: of several patches, those that make a resource one that a proxy would refuse; the resource stays as
// it was where nothing is left.
func TestWhatBreaksIsLeftOut(t *testing.T) {
	good, bad := merge(`{"connect_timeout": "3s"}`), merge(`{"connect_timeout": "-1s"}`)
	var sets Sets
	set, err := sets.Of(Gateway, []*model.Patch{good, bad})
	if err != nil {
		t.Fatal(err)
	}
	before := &clusterv3.Cluster{Name: "c", ConnectTimeout: durationpb.New(1e9)}
	r := set.Cluster(before)
	if r.Message.ConnectTimeout.AsDuration() != 3e9 || !slices.Equal(r.Changed, []*model.Patch{good}) || !strings.Contains(r.Broken[bad], "ConnectTimeout") {
		t.Errorf("%+v", r)
	}
	if before.ConnectTimeout.AsDuration() != 1e9 {
		t.Error("the message before was changed, which others share")
	}
	if again := set.Cluster(before); again.Message != r.Message {
		t.Error("it was made twice")
	}
	if set, err = sets.Of(Gateway, []*model.Patch{bad}); err != nil {
		t.Fatal(err)
	}
	if r := set.Cluster(before); r.Message != before || len(r.Broken) != 1 {
		t.Errorf("%+v", r)
	}
}

// TestSetsOfOneContext: patches of other contexts do not count, whole resources are added to a sidecar once, and what has the
// same patches has the same results until it is swept.
func TestSetsOfOneContext(t *testing.T) {
	var sets Sets
	inbound := &model.Patch{ApplyTo: "CLUSTER", Context: "SIDECAR_INBOUND", Operation: "REMOVE"}
	if set, err := sets.Of(SidecarOutbound, []*model.Patch{inbound}); err != nil || set != nil {
		t.Errorf("%v %v", set, err)
	}
	add := &model.Patch{ApplyTo: "CLUSTER", Context: "ANY", Operation: "ADD", Value: []byte(`{"name": "more"}`)}
	for context, want := range map[Context]int{SidecarInbound: 0, SidecarOutbound: 1, Gateway: 1} {
		set, err := sets.Of(context, []*model.Patch{add})
		if err != nil || set == nil != (want == 0) || set != nil && len(set.Clusters()) != want {
			t.Errorf("%s: %v %v", context, set, err)
		}
	}
	if _, err := sets.Of(Gateway, []*model.Patch{merge(`{"name": 5}`)}); err == nil {
		t.Error("a value that is no cluster was taken")
	}
	table := &routev3.RouteConfiguration{Name: "80", VirtualHosts: []*routev3.VirtualHost{{Name: "a", Domains: []string{"a"}}, {Name: "b", Domains: []string{"b"}}}}
	remove := &model.Patch{ApplyTo: "VIRTUAL_HOST", Context: "ANY", Operation: "REMOVE", Routes: &model.PatchRoutes{Host: "a"}}
	set, err := sets.Of(SidecarOutbound, []*model.Patch{remove})
	if err != nil {
		t.Fatal(err)
	}
	if r := set.Table(table); len(r.Message.VirtualHosts) != 1 || r.Message.VirtualHosts[0] != table.VirtualHosts[1] {
		t.Errorf("%v", r.Message)
	}
	if len(table.VirtualHosts) != 2 {
		t.Error("the table before was changed")
	}
	sets.Mark()
	set.Table(table)
	if sets.Sweep([]*Set{set}); len(sets.results) != 1 {
		t.Errorf("%d results are left, not that of the virtual host that a patch has to do with", len(sets.results))
	}
	sets.Mark()
	if sets.Sweep(nil); len(sets.results) != 0 || len(sets.lists) != 0 || len(sets.decoded) != 0 {
		t.Errorf("%d results that nobody asked for are kept", len(sets.results))
	}
}

// TestTablesInListeners: a table in a listener is patched as one of its own is. A virtual host that would be there twice, which a
// proxy refuses the listener for, is left out, and what breaks one virtual host is left out of that alone.
func TestTablesInListeners(t *testing.T) {
	table := &routev3.RouteConfiguration{Name: "inbound|80||", VirtualHosts: []*routev3.VirtualHost{{Name: "a", Domains: []string{"a"}}, {Name: "b", Domains: []string{"b"}}}}
	router, err := envoyapi.Pack(&routerv3.Router{})
	if err != nil {
		t.Fatal(err)
	}
	manager, err := envoyapi.Pack(&hcmv3.HttpConnectionManager{StatPrefix: "in", HttpFilters: []*hcmv3.HttpFilter{
		{Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: router}},
	}, RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: table}})
	if err != nil {
		t.Fatal(err)
	}
	listener := &listenerv3.Listener{Name: "in", FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{
		{Name: filterHCM, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: manager}}}}}}
	host := func(operation, of, value string) *model.Patch {
		return &model.Patch{ApplyTo: "VIRTUAL_HOST", Context: "ANY", Operation: operation, Routes: &model.PatchRoutes{Host: of}, Value: []byte(value)}
	}
	twice, more := host("ADD", "", `{"name": "c", "domains": ["A"]}`), host("ADD", "", `{"name": "d", "domains": ["d"]}`)
	breaks := host("MERGE", "b", `{"hedge_policy": {"initial_requests": 0}}`)
	var sets Sets
	set, err := sets.Of(SidecarInbound, []*model.Patch{twice, more, breaks})
	if err != nil {
		t.Fatal(err)
	}
	r := set.Listener(listener)
	if len(r.Broken) != 2 || !strings.Contains(r.Broken[twice], "a virtual host for A already") || r.Broken[breaks] == "" {
		t.Errorf("left out: %v", r.Broken)
	}
	if !slices.Contains(r.Changed, more) || slices.Contains(r.Changed, twice) {
		t.Errorf("%d patches changed it", len(r.Changed))
	}
	got := &hcmv3.HttpConnectionManager{}
	if err := r.Message.FilterChains[0].Filters[0].GetTypedConfig().UnmarshalTo(got); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, h := range got.GetRouteConfig().GetVirtualHosts() {
		names = append(names, h.GetName())
	}
	if !slices.Equal(names, []string{"a", "b", "d"}) {
		t.Errorf("virtual hosts %v", names)
	}
}

// TestLaterPatchesSeeWhatEarlierOnesMade: one that goes by a domain which another gave the virtual host finds it, in its place in the
// order only.
func TestLaterPatchesSeeWhatEarlierOnesMade(t *testing.T) {
	merged := &model.Patch{ApplyTo: "VIRTUAL_HOST", Context: "ANY", Operation: "MERGE", Routes: &model.PatchRoutes{Host: "a"}, Value: []byte(`{"domains": ["more"]}`)}
	early := &model.Patch{ApplyTo: "HTTP_ROUTE", Context: "ANY", Operation: "INSERT_FIRST", Routes: &model.PatchRoutes{Domain: "more"}, Value: []byte(`{"name": "r", "match": {"path": "/"}, "direct_response": {"status": 200}}`)}
	table := &routev3.RouteConfiguration{Name: "80", VirtualHosts: []*routev3.VirtualHost{{Name: "a", Domains: []string{"a"}}, {Name: "b", Domains: []string{"b"}}}}
	var sets Sets
	set, err := sets.Of(SidecarOutbound, []*model.Patch{merged, early})
	if err != nil {
		t.Fatal(err)
	}
	if r := set.Table(table); len(r.Changed) != 2 || len(r.Message.VirtualHosts[0].Routes) != 1 || r.Message.VirtualHosts[1] != table.VirtualHosts[1] {
		t.Errorf("%v", r)
	}
	port := &model.Patch{ApplyTo: "LISTENER", Context: "ANY", Operation: "MERGE", Listener: &model.PatchListener{Port: 1}, Value: []byte(`{"address": {"socket_address": {"port_value": 2}}}`)}
	buffer := &model.Patch{ApplyTo: "LISTENER", Context: "ANY", Operation: "MERGE", Listener: &model.PatchListener{Port: 2}, Value: []byte(`{"per_connection_buffer_limit_bytes": 5}`)}
	if set, err = sets.Of(SidecarOutbound, []*model.Patch{port, buffer}); err != nil {
		t.Fatal(err)
	}
	listener := &listenerv3.Listener{Name: "l", Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: "0.0.0.0", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 1}}}}}
	if r := set.Listener(listener); r.Message.GetPerConnectionBufferLimitBytes().GetValue() != 5 {
		t.Errorf("%v", r)
	}
	was, err := sets.Of(SidecarOutbound, []*model.Patch{port})
	if err != nil {
		t.Fatal(err)
	}
	if !set.Since(was).Listener(listener) || set.Since(was).Listener(&listenerv3.Listener{Name: "other"}) {
		t.Error("a patch that goes by what one in common makes is not among the differences, or those of another listener are")
	}
}

// TestTablesHaveNoTwoOfOneDomain: a patch that gives a virtual host a domain of another, or brings one with it, is left out; others of the
// same virtual host are not.
func TestTablesHaveNoTwoOfOneDomain(t *testing.T) {
	table := &routev3.RouteConfiguration{Name: "80", VirtualHosts: []*routev3.VirtualHost{{Name: "a", Domains: []string{"a"}}, {Name: "b", Domains: []string{"b"}}}}
	of := func(applyTo, operation, host, value string) *model.Patch {
		return &model.Patch{ApplyTo: applyTo, Context: "ANY", Operation: operation, Routes: &model.PatchRoutes{Host: host}, Value: []byte(value)}
	}
	count := of("VIRTUAL_HOST", "MERGE", "a", `{"include_request_attempt_count": true}`)
	for what, bad := range map[string]*model.Patch{
		"a domain merged":     of("VIRTUAL_HOST", "MERGE", "a", `{"domains": ["B"]}`),
		"a host replaced":     of("VIRTUAL_HOST", "REPLACE", "a", `{"name": "a", "domains": ["b"]}`),
		"a name of another":   of("VIRTUAL_HOST", "MERGE", "a", `{"name": "b"}`),
		"a host with a table": of("ROUTE_CONFIGURATION", "MERGE", "", `{"virtual_hosts": [{"name": "c", "domains": ["b"]}]}`),
	} {
		var sets Sets
		set, err := sets.Of(SidecarOutbound, []*model.Patch{bad, count})
		if err != nil {
			t.Fatal(err)
		}
		r := set.Table(table)
		hosts := r.Message.GetVirtualHosts()
		if r.Broken[bad] == "" || len(r.Broken) != 1 || !slices.Equal(r.Changed, []*model.Patch{count}) {
			t.Errorf("%s: %v", what, r.Outcome)
		}
		if len(hosts) != 2 || hosts[0].GetName() != "a" || !slices.Equal(hosts[0].GetDomains(), []string{"a"}) || !hosts[0].GetIncludeRequestAttemptCount() || hosts[1] != table.VirtualHosts[1] {
			t.Errorf("%s: %v", what, hosts)
		}
	}
	swap := []*model.Patch{of("VIRTUAL_HOST", "REPLACE", "a", `{"name": "a", "domains": ["b"]}`), of("VIRTUAL_HOST", "REPLACE", "b", `{"name": "b", "domains": ["a"]}`)}
	var sets Sets
	set, err := sets.Of(SidecarOutbound, swap)
	if err != nil {
		t.Fatal(err)
	}
	if r := set.Table(table); len(r.Broken) != 0 || len(r.Changed) != 2 {
		t.Errorf("two that change places: %v", r.Outcome)
	}
}

// TestOnlyThosePartyToAClashAreLeftOut: others that give virtual hosts domains stay, also of the same virtual host's other outcomes; who
// gets a name back takes it from who took it; a domain that is merged twice stands there once.
func TestOnlyThosePartyToAClashAreLeftOut(t *testing.T) {
	of := func(applyTo, operation, host, value string) *model.Patch {
		return &model.Patch{ApplyTo: applyTo, Context: "ANY", Operation: operation, Routes: &model.PatchRoutes{Host: host}, Value: []byte(value)}
	}
	table := &routev3.RouteConfiguration{Name: "80"}
	for _, name := range []string{"a", "b", "c", "d"} {
		table.VirtualHosts = append(table.VirtualHosts, &routev3.VirtualHost{Name: name, Domains: []string{name}})
	}
	innocent, twice, again := of("VIRTUAL_HOST", "MERGE", "a", `{"domains": ["alias"]}`), of("VIRTUAL_HOST", "MERGE", "b", `{"domains": ["D"]}`), of("VIRTUAL_HOST", "MERGE", "a", `{"domains": ["Alias"]}`)
	beside := of("VIRTUAL_HOST", "MERGE", "b", `{"domains": ["other"]}`)
	invalid := of("VIRTUAL_HOST", "MERGE", "b", `{"domains": ["x"], "retry_policy": {"num_retries": 1, "retry_back_off": {}}}`)
	good, bad := of("ROUTE_CONFIGURATION", "MERGE", "", `{"virtual_hosts": [{"name": "e", "domains": ["e"]}]}`), of("ROUTE_CONFIGURATION", "MERGE", "", `{"virtual_hosts": [{"name": "f", "domains": ["f", "F"]}]}`)
	var sets Sets
	set, err := sets.Of(SidecarOutbound, []*model.Patch{innocent, beside, twice, again, invalid, good, bad})
	if err != nil {
		t.Fatal(err)
	}
	r := set.Table(table)
	if len(r.Broken) != 3 || r.Broken[twice] == "" || r.Broken[invalid] == "" || r.Broken[bad] == "" {
		t.Errorf("left out: %v", r.Broken)
	}
	var got []string
	for _, h := range r.Message.GetVirtualHosts() {
		got = append(got, h.GetName()+"="+strings.Join(h.GetDomains(), ","))
	}
	if want := []string{"a=a,alias", "b=b,other", "c=c", "d=d", "e=e"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if again := set.Table(table); again.Message.VirtualHosts[1] != r.Message.VirtualHosts[1] || again.Message.VirtualHosts[0] != r.Message.VirtualHosts[0] {
		t.Error("virtual hosts were made twice")
	}
	// a takes b's place, b would take c's: that is undone, and so is what took its place.
	chain := []*model.Patch{of("VIRTUAL_HOST", "REPLACE", "a", `{"name": "a", "domains": ["b"]}`), of("VIRTUAL_HOST", "REPLACE", "b", `{"name": "b", "domains": ["c"]}`)}
	if set, err = sets.Of(SidecarOutbound, chain); err != nil {
		t.Fatal(err)
	}
	if r := set.Table(table); len(r.Broken) != 2 || r.Message != table && !slices.Equal(r.Message.VirtualHosts, table.VirtualHosts) {
		t.Errorf("%v", r)
	}
}

// TestMuchThatMakesNothingIsSwept: filters that change and match nothing are forgotten as well.
func TestMuchThatMakesNothingIsSwept(t *testing.T) {
	var sets Sets
	for range 3000 {
		if _, err := sets.Of(SidecarOutbound, []*model.Patch{{ApplyTo: "CLUSTER", Context: "ANY", Operation: "REMOVE"}}); err != nil {
			t.Fatal(err)
		}
	}
	if !sets.Crowded() {
		t.Error("3000 versions of a filter are kept")
	}
	sets.Mark()
	if sets.Sweep(nil); sets.Crowded() || sets.size() != 0 {
		t.Errorf("%d are left", sets.size())
	}
}

// TestManyPatchesAreFound: of a thousand patches, those that name a service, a cluster, or neither, in their order.
func TestManyPatchesAreFound(t *testing.T) {
	var all []*model.Patch
	patch := func(of *model.PatchCluster, seconds int) {
		all = append(all, &model.Patch{ApplyTo: "CLUSTER", Context: "ANY", Operation: "MERGE", Cluster: of, Value: fmt.Appendf(nil, `{"connect_timeout": "%ds"}`, seconds)})
	}
	for i := range 1000 {
		patch(&model.PatchCluster{Service: fmt.Sprintf("s-%d", i)}, i+1)
		patch(&model.PatchCluster{Name: fmt.Sprintf("outbound|80||s-%d", i), Service: "not looked at"}, 2000+i)
	}
	patch(&model.PatchCluster{Service: "s-7", Port: 90}, 9000)
	patch(&model.PatchCluster{Port: 81}, 9001)
	var sets Sets
	set, err := sets.Of(SidecarOutbound, all)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]int{
		"outbound|80||s-7": {14, 15}, "outbound|81||s-7": {14, 2001}, "outbound|90|v1|s-7": {14, 2000}, "outbound|81||none": {2001}, "outbound|80||none": nil, "s-7": nil,
	} {
		var got []int
		for _, p := range set.Cluster(&clusterv3.Cluster{Name: name}).Changed {
			got = append(got, slices.Index(all, p))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s is changed by %v, want %v", name, got, want)
		}
	}
	less, err := sets.Of(SidecarOutbound, append(slices.Clone(all[:15]), all[16:]...))
	if err != nil {
		t.Fatal(err)
	}
	d := less.Since(set)
	if !d.Cluster(&clusterv3.Cluster{Name: "outbound|80||s-7"}) || d.Cluster(&clusterv3.Cluster{Name: "outbound|81||s-7"}) || d.Listeners() || d.Tables() {
		t.Error("what is different without a patch is not the cluster that it names")
	}
	swapped := slices.Clone(all)
	swapped[14], swapped[16] = swapped[16], swapped[14]
	other, err := sets.Of(SidecarOutbound, swapped)
	if err != nil {
		t.Fatal(err)
	}
	if !other.Since(set).Cluster(&clusterv3.Cluster{Name: "outbound|80||s-7"}) || set.Since(set).Clusters() || !set.Since(nil).Clusters() {
		t.Error("another order, the same patches, and those after none")
	}
}
