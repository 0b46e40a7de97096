package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// Figures of one mesh.
type Figures struct {
	// Endpoint is from an agent's report to the last proxy's acknowledgement, the middle of all changes and the 99th of a
	// hundred.
	EndpointP50, EndpointP99 time.Duration
	// Route is from applying a VirtualService that all proxies use to the last acknowledgement, the middle of all changes and the
	// slowest one.
	RouteP50, RouteP99 time.Duration
	// Connect is until all proxies have everything, beginning with none.
	Connect time.Duration
	// Memory of the controller, resident, when all is done and at its highest, in bytes.
	Memory, Highest int64
	// Bytes that each proxy is sent for an endpoint's change.
	Bytes float64
	// ConnectCPU, EndpointCPU and RouteCPU are the controller's processor time: for all connections, and for a change, with
	// all that went on meanwhile. Proxies and controller share the processors, so that times are of both.
	ConnectCPU, EndpointCPU, RouteCPU time.Duration
}

// routeChanges is how often the VirtualService changes.
const routeChanges = 5

// Measure starts a controller with a mesh, connects the proxies and changes endpoints so often. argv is the command that
// calls [Serve] with the folder that is added to it.
func Measure(ctx context.Context, size Size, changes int, progress io.Writer, argv ...string) (f Figures, err error) {
	// Sockets have short names.
	dir, err := os.MkdirTemp("", "heddle-bench")
	if err != nil {
		return f, fmt.Errorf("make folder: %w", err)
	}
	defer os.RemoveAll(dir)
	p, err := start(ctx, dir, argv...)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	began := time.Now()
	if err := size.apply(ctx, p.client); err != nil {
		return f, err
	}
	agents := size.agents(p.client, began.UTC().Truncate(time.Second))
	if err := agents.reportAll(ctx); err != nil {
		return f, err
	}
	if err := size.applyRoutes(ctx, p.client, 1); err != nil {
		return f, err
	}
	background, leave := context.WithCancel(ctx)
	renewed := make(chan error, 1)
	go func() { renewed <- agents.renew(background) }()
	defer func() {
		leave()
		err = errors.Join(err, <-renewed)
	}()
	fmt.Fprintf(progress, "  applied and reported after %s\n", time.Since(began).Round(time.Millisecond))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before, err := p.spent()
	if err != nil {
		return f, err
	}
	phase := func(n int) (spent, error) {
		now, err := p.spent()
		took := now.since(before, n)
		before = now
		return took, err
	}
	began = time.Now()
	all, err := connect(ctx, size, p.place.XDSSocket())
	if err != nil {
		return f, err
	}
	f.Connect = time.Since(began)
	took, err := phase(1)
	if err != nil {
		return f, err
	}
	f.ConnectCPU = took.controller
	fmt.Fprintf(progress, "  %d proxies connected after %s; %s\n", size.Proxies, f.Connect.Round(time.Millisecond), took)
	var times []time.Duration
	var sent int64
	for i := range changes {
		// Two changes for each replica: gone, back.
		service := i / 2 * 7 % size.Services
		took, bytes, err := all.arrival(ctx, resource.EndpointType, size.cluster(service), func() error {
			return agents.flip(ctx, service*size.Endpoints)
		})
		if err != nil {
			return f, err
		}
		times, sent = append(times, took), sent+bytes
	}
	slices.Sort(times)
	f.EndpointP50, f.EndpointP99 = times[len(times)/2], times[min(len(times)*99/100, len(times)-1)]
	f.Bytes = float64(sent) / float64(changes) / float64(all.count)
	if took, err = phase(changes); err != nil {
		return f, err
	}
	f.EndpointCPU = took.controller
	fmt.Fprintf(progress, "  %d endpoint changes: p50 %s, p99 %s, %.0f bytes each; %s each\n", changes,
		f.EndpointP50.Round(time.Millisecond/10), f.EndpointP99.Round(time.Millisecond/10), f.Bytes, took)
	times = times[:0]
	for i := range routeChanges {
		took, _, err := all.arrival(ctx, resource.RouteType, fmt.Sprint(httpPort), func() error { return size.applyRoutes(ctx, p.client, i+2) })
		if err != nil {
			return f, err
		}
		times = append(times, took)
	}
	slices.Sort(times)
	f.RouteP50, f.RouteP99 = times[len(times)/2], times[len(times)-1]
	if f.Memory, f.Highest, err = p.memory(); err != nil {
		return f, err
	}
	if took, err = phase(routeChanges); err != nil {
		return f, err
	}
	f.RouteCPU = took.controller
	fmt.Fprintf(progress, "  VirtualService p50 %s, slowest %s; %s; memory %d MB, at its highest %d MB\n", f.RouteP50.Round(time.Millisecond/10), f.RouteP99.Round(time.Millisecond/10), took, f.Memory>>20, f.Highest>>20)
	return f, nil
}
