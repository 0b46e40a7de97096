package agent

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"time"

	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
)

// Proxy describes a proxy to whoever writes its bootstrap and its xDS node.
type Proxy struct {
	Cluster, Namespace, Workload, Name string
	// Gateway says that it stands alone.
	Gateway        bool
	ServiceAccount string
	Labels         map[string]string
	Address        netip.Addr
	// Socket is the unix socket of SDS and ADS.
	Socket string
	// Foreign says that the program is not heddle-proxy.
	Foreign bool
}

// NodeID is the xDS node id in Istio's form: type~address~name.namespace~domain.
func (p Proxy) NodeID() string {
	kind := "sidecar"
	if p.Gateway {
		kind = "router"
	}
	return fmt.Sprintf("%s~%s~%s.%s~%s.svc.%s", kind, p.Address, p.Name, p.Namespace, p.Namespace, cluster.Domain)
}

// How long things may take when a replica stops.
const (
	// stopGrace is between SIGTERM and SIGKILL.
	stopGrace = 10 * time.Second
	// settleTime lets the other proxies hear that the endpoint is gone before its listeners drain.
	settleTime = 300 * time.Millisecond
	// drainTime lets requests that are under way end.
	drainTime = 1500 * time.Millisecond
)

const (
	readyPoll    = 100 * time.Millisecond
	readyTimeout = time.Second
	// steadyPoll is between looks at a proxy that is ready, and unready how many failures in a row make it not ready.
	steadyPoll, unready = 2 * time.Second, 3
	// gatewayPoll and gatewayUnready are the same for gateways, which get new connections from outside until then.
	gatewayPoll, gatewayUnready = time.Second, 2
	// proxyFiles bounds a proxy's open files: two sockets per proxied connection.
	proxyFiles = 1 << 16
)

// startProxy starts the sidecar or gateway.
func (r *replica) startProxy() (*process.Process, error) {
	program, option := r.spec.ProxyPath, "annotation "+AnnotationProxyPath
	switch {
	case program == "":
		program, option = r.agent.config.Proxy, "--proxy"
	case r.spec.Gateway:
		option = "--gateway-proxy"
	}
	program, err := process.Resolve(program, r.agent.config.Bin)
	if err != nil {
		return nil, err
	}
	hidden := r.agent.hidden()
	if err := hidden.Refuse(program); err != nil {
		return nil, fmt.Errorf("%s: %w", option, err)
	}
	command := []string{program, "-c", filepath.Join(r.dir, "bootstrap.yaml")}
	if !r.spec.Gateway {
		// Istio's default for sidecars: many share one machine. A gateway takes a worker for each processor.
		command = append(command, "--concurrency", "2")
	}
	if r.foreign() {
		// No shared memory for hot restart, whose names would clash between the sidecars of one machine.
		command = append(command, "--disable-hot-restart", "--log-level", "warning")
	} else if r.agent.bypass.mayRedirect() {
		command = append(command, "--tcp-bypass")
	}
	return r.launch("proxy", process.Spec{
		Command: command, Env: []string{"PATH=/usr/bin:/bin", "HOME=/"}, UID: r.proxyUser, GID: r.proxyUser, Files: proxyFiles, Hide: hidden.Dirs,
		// Its configuration and its agent's socket, and no other's. What else is in the directory is root's.
		Sandbox: &process.Sandbox{Keep: []string{r.dir}, PIDs: maxReplicaPIDs},
	}, process.Limits{PIDs: maxReplicaPIDs})
}

// foreign says that the proxy takes a stock Envoy's arguments rather than heddle-proxy's.
func (r *replica) foreign() bool {
	return r.spec.ProxyPath != "" || r.agent.config.ForeignProxy
}

// superviseProxy keeps the proxy running.
func (r *replica) superviseProxy(ctx context.Context, record *process.Record, lost bool) {
	var pauses backoff
	proxy, _ := r.find("proxy", record, lost)
	if proxy == nil {
		r.set(func() { r.proxyReady = false })
	}
	for ctx.Err() == nil {
		began := time.Now()
		var reason string
		if proxy == nil {
			// Its first configuration waits for its certificate: without, it would only wait on its own.
			select {
			case <-ctx.Done():
				return
			case <-r.credential.Ready():
			}
			var err error
			if proxy, err = r.startProxy(); err != nil {
				reason = "proxy cannot be started: " + err.Error()
			}
		}
		if proxy != nil {
			r.set(func() {
				r.proxy = proxy
				if !r.appReady {
					r.message = "waiting for the proxy to be ready"
				}
			})
			r.keep()
			r.watchProxy(ctx, proxy)
			if ctx.Err() != nil {
				return
			}
			reason, _ = proxy.Exit()
			reason = fmt.Sprintf("proxy ended: %s; its log is %s", reason, filepath.Join(r.logs(), "proxy.log"))
		}
		pause := pauses.next(time.Since(began))
		r.log.Warn("proxy is not running", "reason", reason, "again_in", pause)
		r.set(func() {
			r.proxy, r.proxyReady, r.message = nil, false, reason
			delete(r.noted, "proxy")
		})
		r.keep()
		proxy = nil
		if !wait(ctx, pause) {
			return
		}
	}
}

// watchProxy follows the proxy's readiness until it ends or ctx does.
func (r *replica) watchProxy(ctx context.Context, proxy *process.Process) {
	r.mu.Lock()
	was := r.proxyReady
	r.mu.Unlock()
	steady, failure := steadyPoll, unready
	if r.spec.Gateway {
		steady, failure = gatewayPoll, gatewayUnready
	}
	state := &thresholds{success: 1, failure: failure, ready: was}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-proxy.Done():
			return
		case <-timer.C:
		}
		_, err := r.admin(ctx, http.MethodGet, "/ready", readyTimeout)
		ready := state.add(err == nil)
		if ready != was {
			was = ready
			r.set(func() {
				r.proxyReady = ready
				if !ready {
					r.message = "proxy is not ready: " + err.Error()
				}
			})
		}
		if ready {
			timer.Reset(steady)
		} else {
			timer.Reset(readyPoll)
		}
	}
}

// adminAddress is where a proxy's admin interface listens, inside its network namespace.
var adminAddress = fmt.Sprintf("127.0.0.1:%d", cluster.PortAdmin)

// adminTransport makes connections to the proxy's admin interface.
func (r *replica) adminTransport() *http.Transport {
	return &http.Transport{DialContext: r.dial, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}
}

// maxAdmin bounds an admin answer that the agent itself reads.
const maxAdmin = 1 << 20

// admin asks the proxy's admin interface.
func (r *replica) admin(ctx context.Context, method, path string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+adminAddress+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask proxy: %w", err)
	}
	transport := r.adminTransport()
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("ask proxy: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAdmin))
	if err != nil {
		return nil, fmt.Errorf("ask proxy: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return body, fmt.Errorf("proxy answered %s to %s", response.Status, path)
	}
	return body, nil
}

// stop ends the replica without losing requests, and removes what it had: first the endpoint goes, then the proxy
// drains, then the application and the proxy end. ctx cuts the waiting short, not the removal. After an error it can be
// called again.
func (r *replica) stop(ctx context.Context) error {
	r.mu.Lock()
	wasReady := r.readyLocked()
	r.mu.Unlock()
	r.set(func() {
		if !r.draining { // Called again, it goes on to say why it was not removed.
			r.message = "stopping"
		}
		r.draining = true
	})
	if wasReady {
		if err := r.agent.reportNow(ctx); err != nil {
			r.log.Warn("controller not told of the stop; its endpoint goes when it is back", "error", err)
		}
		wait(ctx, settleTime)
		if _, err := r.admin(ctx, http.MethodPost, "/drain_listeners?graceful", readyTimeout); err != nil {
			r.log.Warn("proxy not drained", "error", err)
		} else {
			wait(ctx, drainTime)
		}
	}
	r.cancel()
	<-r.stopped
	r.mu.Lock()
	app, proxy, socket := r.app, r.proxy, r.socket
	r.mu.Unlock()
	if app != nil {
		app.Stop(stopGrace)
	}
	if proxy != nil {
		proxy.Stop(stopGrace)
	}
	if socket != nil {
		socket.Close()
	}
	if err := r.agent.discard(r.spec.Namespace, r.spec.Name); err != nil {
		return err
	}
	if r.spec.Gateway && r.address.IsValid() {
		// While the namespace is there, its kernel closes or resets what the proxy leaves; now nobody would answer peers
		// that have not heard of it.
		if err := network.Forget(r.address); err != nil {
			r.log.Warn("clients of the gateway hear late that it has gone", "error", err)
		}
	}
	return nil
}

// handOver ends supervision and leaves the processes running, for the next agent.
func (r *replica) handOver() {
	r.cancel()
	<-r.stopped
	if r.socket != nil {
		r.socket.Close()
	}
}
