package scenarios

import (
	"context"

	"heddle.io/heddle/bench/cluster"
	"heddle.io/heddle/bench/load"
	"heddle.io/heddle/bench/results"
	"heddle.io/heddle/control/objects"
)

// direct is the way that the others are compared with.
const direct = "direct"

// clusterWays of p3 between a client and its server, in the order in which they take turns first.
var clusterWays = []cluster.Way{
	{Name: direct, Direct: true},
	{Name: "heddle"},
	{Name: "heddle-mtls", MutualTLS: true},
	{Name: "heddle-mtls-no-telemetry", MutualTLS: true, NoTelemetry: true},
	{Name: "heddle-mtls-ebpf", MutualTLS: true, EBPF: true},
	{Name: "heddle-mtls-bypass", MutualTLS: true, Bypass: objects.BypassSend},
	{Name: "heddle-mtls-bypass-both", MutualTLS: true, Bypass: objects.BypassBoth},
	{Name: "envoy", Envoy: true},
	{Name: "envoy-mtls", Envoy: true, MutualTLS: true},
	{Name: "envoy-mtls-ebpf", Envoy: true, MutualTLS: true, EBPF: true},
}

// sidecarsOfCluster compares what the sidecars of a cluster add.
func sidecarsOfCluster(o Options) (results.Result, error) {
	var running *cluster.Cluster
	start := func(ctx context.Context) ([]*sidecarPair, error) {
		some, err := chosen(clusterWays, func(w cluster.Way) string { return w.Name }, o.Subjects)
		if err != nil {
			return nil, err
		}
		if running, err = cluster.Open(ctx, o.Binaries); err != nil {
			return nil, err
		}
		started, err := running.Start(ctx, some)
		if err != nil {
			return nil, err
		}
		var pairs []*sidecarPair
		for _, p := range started {
			observe := func(run func() (load.Result, error)) (observation, error) { return observeInCluster(ctx, p, run) }
			pairs = append(pairs, &sidecarPair{name: p.Name, client: p.Client, url: p.URL, observe: observe, figures: map[string][]float64{}})
		}
		return pairs, nil
	}
	result, err := compareSidecars("p3", o, start, func() error {
		if running == nil {
			return nil
		}
		return running.Close()
	})
	addedToDirect(result.Subjects)
	return result, err
}

// observeInCluster runs a load and says what it took; it is an error that the run does not measure what the way says.
func observeInCluster(ctx context.Context, p *cluster.Pair, run func() (load.Result, error)) (observation, error) {
	var o observation
	before, err := p.Counts(ctx)
	if err != nil {
		return o, err
	}
	used, err := p.Cost()
	if err != nil {
		return o, err
	}
	if o.load, err = run(); err != nil {
		return o, err
	}
	cost, err := p.Cost()
	if err != nil {
		return o, err
	}
	o.client, o.clientSidecar, o.serverSidecar, o.server = o.load.CPU, cost.ClientSidecar-used.ClientSidecar, cost.ServerSidecar-used.ServerSidecar, cost.Server-used.Server
	if err := o.check(0); err != nil {
		return o, err
	}
	after, err := p.Counts(ctx)
	if err != nil {
		return o, err
	}
	o.bypassed = after.Messages - before.Messages
	return o, p.Check(before, after, o.load.Requests)
}

// addedToDirect says what each way adds to the latency of the direct one, where that was measured.
func addedToDirect(subjects map[string]map[string]float64) {
	without, ok := subjects[direct]
	if !ok {
		return
	}
	for name, figures := range subjects {
		if name != direct {
			figures["added_p95_ms"] = figures["p95_ms"] - without["p95_ms"]
		}
	}
}
