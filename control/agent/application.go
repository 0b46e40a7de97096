package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
)

// startApp starts the application.
func (r *replica) startApp() (*process.Process, error) {
	who, err := r.account()
	if err != nil {
		return nil, err
	}
	if len(r.spec.Command) == 0 {
		return nil, errors.New("spec.command is empty")
	}
	program, err := process.Resolve(r.spec.Command[0], r.agent.config.Bin)
	if err != nil {
		return nil, err
	}
	hidden := r.agent.hidden()
	if err := hidden.Refuse(program); err != nil {
		return nil, fmt.Errorf("spec.command: %w", err)
	}
	environment := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + who.home,
		"HOSTNAME=" + r.spec.Name, "HEDDLE_NAMESPACE=" + r.spec.Namespace, "HEDDLE_WORKLOAD=" + r.spec.Workload,
		"HEDDLE_POD_IP=" + r.address.String(),
	}
	for _, e := range r.spec.Env {
		environment = append(environment, e.Name+"="+e.Value)
	}
	return r.launch("app", process.Spec{
		Command: append([]string{program}, r.spec.Command[1:]...), Env: environment, UID: who.uid, GID: who.gid,
		// Pods are called by their own name; so are replicas. The kernel takes 64 bytes.
		Hostname: r.spec.Name[:min(len(r.spec.Name), 63)], Resolv: filepath.Join(r.dir, "resolv.conf"),
		Hide: hidden.Dirs, Sandbox: r.sandbox(),
	}, r.spec.Limits)
}

// hidden are the places of the mesh's sockets and keys: nobody's business but the agent's, even if the application is root.
// Without the proxy program, which has an error of its own, only the others count.
func (a *Agent) hidden() cluster.Hidden {
	proxy, _ := process.Resolve(a.config.Proxy, a.config.Bin)
	return a.config.Cluster.Hidden(a.options, a.config.Bin, proxy)
}

// sandbox of the application, nil without.
func (r *replica) sandbox() *process.Sandbox {
	if r.spec.Unconfined {
		return nil
	}
	return &process.Sandbox{Capabilities: r.spec.Capabilities, PIDs: maxReplicaPIDs}
}

// superviseApp keeps the application running as its restart policy says, and probes it.
func (r *replica) superviseApp(ctx context.Context, state kept, lost bool) {
	if state.Ended != "" {
		r.end(state.Ended, r.spec.Restart == v1alpha1.RestartOnFailure)
		return
	}
	app, ended := r.find("app", state.App, lost)
	if ended && r.spec.Restart == v1alpha1.RestartNever {
		r.finish("application ended while no agent ran, its exit code is unknown", false)
		return
	}
	if app == nil {
		r.set(func() { r.appReady = false })
		if !r.awaitProxy(ctx) {
			return
		}
	}
	var pauses backoff
	for ctx.Err() == nil {
		began := time.Now()
		var reason string
		failed := true
		if app == nil {
			var err error
			if app, err = r.startApp(); err != nil {
				reason = err.Error()
			}
		}
		if app != nil {
			r.set(func() {
				r.app, r.backingOff = app, false
				if !r.appReady {
					r.message = "waiting for the readiness probe"
				}
			})
			r.keep()
			r.watchApp(ctx, app)
			if ctx.Err() != nil {
				return
			}
			reason, failed = app.Exit()
			reason = "application ended: " + reason
			// Children that outlived the application hold its ports.
			r.agent.hierarchies.KillMembers(r.cgroup("app"))
		}
		r.log.Warn("application is not running", "reason", reason)
		if app != nil && (r.spec.Restart == v1alpha1.RestartNever || r.spec.Restart == v1alpha1.RestartOnFailure && !failed) {
			r.finish(reason, !failed)
			return
		}
		pause := pauses.next(time.Since(began))
		r.set(func() {
			r.app, r.appReady, r.backingOff = nil, false, true
			r.message = fmt.Sprintf("%s; starting again in %s", reason, pause)
			if app != nil {
				r.restarts++
			}
			delete(r.noted, "app")
		})
		r.keep()
		app = nil
		if !wait(ctx, pause) {
			return
		}
	}
}

// finish keeps that the application has ended for good.
func (r *replica) finish(reason string, succeeded bool) {
	r.set(func() {
		r.app, r.appReady, r.ended = nil, false, reason
		delete(r.noted, "app")
	})
	r.keep()
	r.end(reason, succeeded)
}

func (r *replica) end(reason string, succeeded bool) {
	r.set(func() {
		r.phase, r.message = phaseFailed, reason
		if succeeded {
			r.phase = phaseStopped
		}
	})
}

// awaitProxy blocks until the proxy is ready for the first time.
func (r *replica) awaitProxy(ctx context.Context) bool {
	for {
		r.mu.Lock()
		ready, changed := r.proxyReady, r.changed
		r.mu.Unlock()
		if ready {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

// watchApp probes the application until it ends or ctx does.
func (r *replica) watchApp(ctx context.Context, app *process.Process) {
	delay, period, timeout := timing(r.spec.Readiness)
	state := newThresholds(r.spec.Readiness)
	if state.ready = r.isAppReady(); state.ready {
		delay = 0
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-app.Done():
			return
		case <-timer.C:
		}
		probeCtx, cancel := context.WithTimeout(ctx, timeout)
		err := probe(probeCtx, r.dial, r.address, r.spec.Readiness)
		cancel()
		if ready := state.add(err == nil); ready != r.isAppReady() || !ready {
			r.set(func() {
				r.appReady = ready
				if !ready && err != nil {
					r.message = "not ready: " + steady(err)
				}
			})
		}
		next := period
		if !state.ready && err != nil {
			// A starting application is asked more often, so that it gets traffic as soon as it can.
			next = min(period, 200*time.Millisecond)
		}
		timer.Reset(next)
	}
}

func (r *replica) isAppReady() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.appReady
}
