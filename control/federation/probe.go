package federation

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// failuresToLeave in a row take a peer's endpoints out of rotation; one success brings them back. With the usual pace, a
// dead link is noticed within three seconds, and its return within two.
const failuresToLeave = 2

// probeLoop keeps one prober per peer that has gateways.
func (f *Federation) probeLoop(ctx context.Context) {
	type prober struct {
		gateways []netip.AddrPort
		stop     context.CancelFunc
		done     chan struct{}
	}
	running := map[string]prober{}
	end := func(name string) {
		running[name].stop()
		<-running[name].done
		delete(running, name)
	}
	defer func() {
		for name := range running {
			end(name)
		}
	}()
	signal(f.reprobe)
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.reprobe:
		}
		targets := f.targets()
		for name, p := range running {
			if !slices.Equal(targets[name], p.gateways) {
				end(name)
			}
		}
		for name, gateways := range targets {
			if _, runs := running[name]; runs {
				continue
			}
			probing, stop := context.WithCancel(ctx)
			p := prober{gateways: gateways, stop: stop, done: make(chan struct{})}
			running[name] = p
			go func() {
				defer close(p.done)
				f.probePeer(probing, name, gateways)
			}()
		}
	}
}

func (f *Federation) targets() map[string][]netip.AddrPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	targets := map[string][]netip.AddrPort{}
	for name, e := range f.peers {
		if len(e.Gateways) > 0 {
			targets[name] = e.Gateways
			continue
		}
		e.unreachable = "it has no address that others could reach: start it with `heddle up --advertise ADDRESS`"
		if e.reachable {
			e.reachable = false
			f.unwritten[name] = true
			f.config.Changed()
		}
	}
	return targets
}

func (f *Federation) probePeer(ctx context.Context, name string, gateways []netip.AddrPort) {
	for {
		began := time.Now()
		err := f.probe(ctx, gateways)
		if ctx.Err() != nil {
			return
		}
		if !wait(ctx, max(0, f.probed(name, err)-time.Since(began)), nil) {
			return
		}
	}
}

// probe returns nil as soon as one gateway accepts a connection.
func (f *Federation) probe(ctx context.Context, gateways []netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, f.config.Pace.ProbeTimeout)
	defer cancel()
	results := make(chan error, len(gateways))
	for _, g := range gateways {
		go func() {
			conn, err := f.config.Dial(ctx, "tcp", g.String())
			if err == nil {
				err = conn.Close()
			}
			results <- err
		}()
	}
	var problems []string
	for range gateways {
		err := <-results
		if err == nil {
			return nil
		}
		if errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			err = fmt.Errorf("no answer within %s", f.config.Pace.ProbeTimeout)
		}
		problems = append(problems, err.Error())
	}
	return errors.New(strings.Join(problems, "; "))
}

// hastyProbes follow each other four times as fast while a peer is not reachable: one that has only just been told of, or
// whose link was interrupted for a moment, is in rotation sooner.
const hastyProbes = 20

// probed notes what a probe found, and says how long after its beginning the next one is due.
func (f *Federation) probed(name string, err error) time.Duration {
	f.counters.add(countProbes)
	pace := f.config.Pace.Probe
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.peers[name]
	if e == nil {
		return pace
	}
	was := e.reachable
	if err == nil {
		e.failures, e.reachable, e.unreachable = 0, true, ""
	} else {
		f.counters.add(countProbesFailed)
		e.failures++
		e.unreachable = clip(err.Error())
		if e.failures >= failuresToLeave {
			e.reachable = false
		}
	}
	if !e.reachable && e.failures <= hastyProbes {
		pace /= 4
	}
	if e.reachable == was {
		return pace
	}
	if e.reachable {
		f.config.Log.Info("cluster can be reached", "peer", name)
	} else {
		f.config.Log.Warn("cluster cannot be reached: its endpoints leave rotation", "peer", name, "error", err)
	}
	f.unwritten[name] = true
	signal(f.unkept)
	f.config.Changed()
	return pace
}
