package scenarios

import (
	"context"
	"fmt"

	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/results"
	"heddle.io/heddle/bench/samehost"
)

// sidecarWork is what both sidecars of a pair do.
type sidecarWork struct {
	name string
	peers.SidecarWork
}

// meshWork is all that a mesh asks of sidecars, and that of such as only pass requests on. Envoy has none of Istio's metrics.
var meshWork = []sidecarWork{
	{"heddle-bare", peers.SidecarWork{}},
	{"heddle-mesh", peers.SidecarWork{MutualTLS: true, IstioMetrics: true, AccessLog: true, Policy: true}},
	{"envoy-bare", peers.SidecarWork{Envoy: true}},
	{"envoy-mesh", peers.SidecarWork{Envoy: true, MutualTLS: true, AccessLog: true, Policy: true}},
}

// mesh compares sidecars that run from files, with one worker each and no controller, by what they do.
func mesh(o Options) (results.Result, error) {
	var host *samehost.Host
	start := func(context.Context) ([]*sidecarPair, error) {
		all, err := chosen(meshWork, func(w sidecarWork) string { return w.name }, o.Subjects)
		if err != nil {
			return nil, err
		}
		if host, err = samehost.Open(); err != nil {
			return nil, err
		}
		var pairs []*sidecarPair
		for _, work := range all {
			pair, err := host.Pair(work.name, samehost.Setup{Sidecars: work.SidecarWork}, o.Binaries)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", work.name, err)
			}
			w := &way{Pair: pair, name: work.name}
			pairs = append(pairs, &sidecarPair{name: work.name, client: pair.Client, url: pair.URL, observe: w.observe, figures: map[string][]float64{}})
		}
		return pairs, nil
	}
	return compareSidecars("mesh", o, start, func() error {
		if host == nil {
			return nil
		}
		return host.Close()
	})
}
