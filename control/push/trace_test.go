package push

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus"

	"heddle.io/heddle/control/translate"
	"heddle.io/heddle/control/xds"
)

// tracedPusher is a pusher whose log is read back, with what it counts.
type tracedPusher struct {
	*Pusher
	text    bytes.Buffer
	metrics *prometheus.Registry
}

func newTraced(t *testing.T, level slog.Level) *tracedPusher {
	t.Helper()
	out := &tracedPusher{metrics: prometheus.NewRegistry()}
	log := slog.New(slog.NewJSONHandler(&out.text, &slog.HandlerOptions{Level: level}))
	out.Pusher = New(log, out.metrics, noDependencies(t), func(source xds.Source) *xds.Server {
		return xds.New(t.Context(), slog.New(slog.DiscardHandler), time.Now, prometheus.NewRegistry(), source, func() {})
	})
	return out
}

// pushed is what the log says of the last push.
func (p *tracedPusher) pushed(t *testing.T) map[string]any {
	t.Helper()
	var last map[string]any
	for line := range strings.Lines(p.text.String()) {
		var one map[string]any
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatal(err)
		}
		if one["msg"] == "pushed" {
			last = one
		}
	}
	p.text.Reset()
	return last
}

// counted is how often a metric was counted up for a label, empty for all.
func (p *tracedPusher) counted(t *testing.T, name, label string) float64 {
	t.Helper()
	families, err := p.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return total
}

// TestATraceSaysWhatAndWho: of a push, the log at debug level names the objects, the groups and the resources, and there is a count
// by cause at any level.
func TestATraceSaysWhatAndWho(t *testing.T) {
	p := newTraced(t, slog.LevelDebug)
	w := newTown(t, 1)
	service := func(n int) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: s-%d, namespace: red}\nspec: {selector: {app: s-%d}, ports: [{name: http, port: 80, targetPort: 8080}]}\n", n, n)
	}
	w.put(service(0))
	w.setReplica(w.instance("red", "s-0", 0))
	for i := range 2 {
		p.attach(t, translate.Node{Type: translate.Sidecar, Address: netip.MustParseAddr("10.0.0.1"), Name: fmt.Sprintf("s-1-%d", i), Namespace: "red", Domain: "cluster.local", Labels: map[string]string{"app": "s-1"}, Heddle: true})
	}
	w.update(p.Pusher)
	if got := p.pushed(t); got["cause"] != "global" {
		t.Errorf("the first model: %v", got)
	}
	for n := 1; n <= 7; n++ {
		w.put(service(n))
	}
	w.update(p.Pusher)
	got := p.pushed(t)
	if got["cause"] != "config" || got["objects"] != 7.0 || got["of"] != "Service/red/s-1, Service/red/s-2, Service/red/s-3, Service/red/s-4, Service/red/s-5" {
		t.Errorf("seven services: %v", got)
	}
	if got["groups"] != 2.0 || got["proxies"] != 2.0 || !strings.Contains(fmt.Sprint(got["to"]), `outbound red`) || !strings.Contains(fmt.Sprint(got["to"]), `inbound red "app"="s-1"`) {
		t.Errorf("two sidecars of one workload: %v", got)
	}
	if such := fmt.Sprint(got["such_as"]); !strings.Contains(such, "CDS outbound|80||s-") || strings.Count(such, ", ") != 4 {
		t.Errorf("resources: %v", got)
	}
	moved := w.instance("red", "s-0", 0)
	moved.Ready = !moved.Ready
	w.setReplica(moved)
	w.update(p.Pusher)
	if got := p.pushed(t); got["cause"] != "endpoint" || got["such_as"] != "EDS outbound|80||s-0.red.svc.cluster.local" || got["proxies"] != 2.0 {
		t.Errorf("a replica: %v", got)
	}
	for label, want := range map[string]float64{"global": 1, "config": 1, "endpoint": 1, "": 3} {
		if got := p.counted(t, "pilot_push_triggers", label); got != want {
			t.Errorf("%v pushes are counted for %q, want %v", got, label, want)
		}
	}
	quiet := newTraced(t, slog.LevelInfo)
	w.update(quiet.Pusher)
	if quiet.text.Len() > 0 || quiet.counted(t, "pilot_push_triggers", "global") != 1 {
		t.Errorf("at another level: %s", quiet.text.String())
	}
}

// TestWhatCannotBeMadeIsCounted: a group whose configuration cannot be made, and a proxy that is of no kind.
func TestWhatCannotBeMadeIsCounted(t *testing.T) {
	p := newTraced(t, slog.LevelDebug)
	w := newTown(t, 1)
	w.put("apiVersion: v1\nkind: Service\nmetadata: {name: s-0, namespace: red}\nspec: {selector: {app: s-0}, ports: [{name: http, port: 80, targetPort: 8080}]}\n")
	p.attach(t, translate.Node{Type: translate.Sidecar, Address: netip.MustParseAddr("10.0.0.1"), Name: "s-1-0", Namespace: "red", Domain: "cluster.local", Heddle: true})
	w.update(p.Pusher)
	if err := p.Attach(&xds.Proxy{}, &core.Node{Id: "nobody"}, false, func([]*xds.Group) {}); err == nil {
		t.Fatal("a node of no kind is taken")
	}
	if got := p.counted(t, "pilot_total_xds_internal_errors", ""); got != 1 {
		t.Errorf("%v errors after a node of no kind", got)
	}
	bad := *p.mesh
	// No message can hold it.
	bad.Settings.TrustDomain = "\xff"
	p.Update(Update{Clients: &bad, Servers: &bad, Revision: 2})
	got := p.pushed(t)
	if failed, _ := got["failed"].(float64); failed == 0 || p.counted(t, "pilot_total_xds_internal_errors", "") != 1+failed {
		t.Errorf("%v errors, and the log says %v", p.counted(t, "pilot_total_xds_internal_errors", ""), got)
	}
}
