package push

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"heddle.io/heddle/control/xds"
)

// cause of a push, in Istio's words where it has them (istio.io/istio/pilot/pkg/model, TriggerReason).
type cause string

const (
	// causeGlobal is the first model, or other settings: everything is made anew.
	causeGlobal cause = "global"
	// causeConfig is whatever else concerns more than endpoints.
	causeConfig cause = "config"
	// causeEndpoint is where replicas are and whether they are ready.
	causeEndpoint cause = "endpoint"
	// causeDemand is a proxy that asked for what its workload had not used before.
	causeDemand cause = "proxyrequest"
	// causeUnused is what a workload has not used for long.
	causeUnused cause = "unused"
)

// metrics have Istio's names.
type metrics struct {
	triggers *prometheus.CounterVec
	failures prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) metrics {
	m := metrics{
		triggers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_push_triggers", Help: "Changes of what proxies are sent, by what they were made for.",
		}, []string{"type"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pilot_total_xds_internal_errors", Help: "Times that what proxies should have could not be made; they keep what they had.",
		}),
	}
	registry.MustRegister(m.triggers, m.failures)
	return m
}

// trace counts a push, and at debug level says what it was for and about, and whom it concerns.
func (p *Pusher) trace(why cause, u Update, changes []xds.Change, moves []xds.Move, started time.Time) {
	took := time.Since(started)
	p.metrics.triggers.WithLabelValues(string(why)).Inc()
	if !p.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	ids := map[*xds.Group]string{}
	for id, g := range p.groups {
		ids[g.group] = id
	}
	objects, groups, resources := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for key := range u.Revised {
		objects[key.String()] = true
	}
	for _, key := range u.Again {
		objects[key.String()] = true
	}
	set, removed, failed := 0, 0, 0
	for _, c := range changes {
		groups[ids[c.Group]] = true
		set, removed = set+len(c.Set), removed+len(c.Removed)
		if c.Failure != "" {
			failed++
		}
		// Groups share resources, and may have very many.
		for _, r := range c.Set[:min(len(c.Set), traced)] {
			resources[r.Type().String()+" "+r.Name()] = true
		}
		for _, r := range c.Removed[:min(len(c.Removed), traced)] {
			resources[r.Type().String()+" -"+r.Name()] = true
		}
	}
	proxies := 0
	for _, member := range p.proxies {
		if slices.ContainsFunc(member.groups, func(g *group) bool { return groups[ids[g.group]] }) {
			proxies++
		}
	}
	p.log.Debug("pushed", "cause", string(why), "version", p.version, "objects", len(objects), "groups", len(groups), "failed", failed, "proxies", proxies,
		"moved", len(moves), "changed", set, "removed", removed, "took", took,
		"of", first(objects), "to", first(groups), "such_as", first(resources))
}

// traced is how many of a kind a line of the log names.
const traced = 5

// first names the first of many, in their order.
func first(all map[string]bool) string {
	names := slices.Sorted(maps.Keys(all))
	return strings.Join(names[:min(len(names), traced)], ", ")
}
