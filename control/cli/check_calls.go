package cli

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/server/client"
)

const (
	// maxCalls are made in a check, and callsAtATime of them together.
	maxCalls, callsAtATime = 500, 8
)

// call is a request that one replica sends to a port of a service.
type call struct {
	subject string
	caller  client.Replica
	request client.CallRequest
	// identities are those that the service's replicas may prove; plain is the mode of mutual TLS that lets one answer
	// without, empty for none.
	identities []string
	plain      model.MTLSMode
}

// callPlan chooses who calls whom: every port of every service that has a ready replica, here or in another cluster.
// Callers are of the service's own namespace, which always sees it, and take turns.
type callPlan struct {
	callers  map[string][]client.Replica
	turns    map[string]int
	services []*corev1.Service
	replicas []client.Replica
	rules    []*objects.Object
	paths    map[string]string
	calls    []call
}

func newCallPlan(services, workloads, rules []*objects.Object, replicas []client.Replica) *callPlan {
	p := &callPlan{callers: map[string][]client.Replica{}, turns: map[string]int{}, replicas: replicas, rules: rules, paths: map[string]string{}}
	for _, r := range replicas {
		if r.Ready && !r.Gateway {
			p.callers[r.Namespace] = append(p.callers[r.Namespace], r)
		}
	}
	for _, o := range workloads {
		if w, ok := o.Resource.(*v1alpha1.Workload); ok && w.Spec.Readiness != nil && w.Spec.Readiness.HTTP != nil {
			p.paths[w.Namespace+"/"+w.Name+":"+strconv.Itoa(int(w.Spec.Readiness.HTTP.Port))] = w.Spec.Readiness.HTTP.Path
		}
	}
	for _, o := range services {
		if svc, ok := o.Resource.(*corev1.Service); ok && len(svc.Spec.Selector) > 0 {
			p.services = append(p.services, svc)
		}
	}
	return p
}

// behind are the ready replicas of a service in this cluster.
func (p *callPlan) behind(svc *corev1.Service) []client.Replica {
	var out []client.Replica
	for _, r := range p.callers[svc.Namespace] {
		if model.Selects(svc.Spec.Selector, r.Labels) {
			out = append(out, r)
		}
	}
	return out
}

// caller is the next replica of a namespace, one of another workload than the service's where there is one.
func (p *callPlan) caller(namespace string, behind []client.Replica) (client.Replica, bool) {
	all := p.callers[namespace]
	if len(all) == 0 {
		return client.Replica{}, false
	}
	for range all {
		r := all[p.turns[namespace]%len(all)]
		p.turns[namespace]++
		if !slices.ContainsFunc(behind, func(b client.Replica) bool { return b.Workload == r.Workload }) {
			return r, true
		}
	}
	return all[p.turns[namespace]%len(all)], true
}

func (p *callPlan) add(subject, namespace, name string, port uint16, protocol, path string, behind []client.Replica, identities []string, plain model.MTLSMode) {
	caller, ok := p.caller(namespace, behind)
	if !ok {
		return
	}
	p.calls = append(p.calls, call{subject: subject + ":" + strconv.Itoa(int(port)), caller: caller, identities: identities, plain: plain,
		request: client.CallRequest{Host: fmt.Sprintf("%s.%s.svc.%s", name, namespace, cluster.Domain), Port: port, Protocol: protocol, Path: path}})
}

// local plans the calls to the services of this cluster.
func (p *callPlan) local() {
	for _, svc := range p.services {
		behind := p.behind(svc)
		if len(behind) == 0 {
			continue
		}
		var identities []string
		for _, r := range behind {
			identities = append(identities, fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", cluster.Domain, r.Namespace, r.ServiceAccount))
		}
		for _, port := range svc.Spec.Ports {
			if port.Protocol != "" && port.Protocol != corev1.ProtocolTCP {
				continue
			}
			target, plain, path := targetPort(port, behind[0]), model.MTLSMode(""), ""
			for _, r := range behind {
				if mode := effectiveMode(r, target, p.rules); mode != model.MTLSStrict {
					plain = mode
				}
				path = p.paths[r.Namespace+"/"+r.Workload+":"+strconv.Itoa(int(target))]
			}
			appProtocol := ""
			if port.AppProtocol != nil {
				appProtocol = *port.AppProtocol
			}
			protocol, _ := model.ProtocolOf(appProtocol, port.Name)
			p.add(svc.Namespace+"/"+svc.Name, svc.Namespace, svc.Name, uint16(port.Port), string(protocol), path, behind, identities, plain)
		}
	}
}

// targetPort is where a replica listens for a port of a service.
func targetPort(port corev1.ServicePort, r client.Replica) int32 {
	if port.TargetPort.StrVal != "" {
		return r.Ports[port.TargetPort.StrVal]
	}
	if n := port.TargetPort.IntVal; n != 0 {
		return n
	}
	return port.Port
}

// remote plans the calls to a service of another cluster, unless replicas of this one would answer first.
func (p *callPlan) remote(peer string, e registry.Export) {
	ready := slices.ContainsFunc(e.Groups, func(g registry.ExportGroup) bool { return g.Ready > 0 })
	for _, svc := range p.services {
		if svc.Namespace == e.Namespace && svc.Name == e.Name && len(p.behind(svc)) > 0 {
			ready = false
		}
	}
	for _, port := range e.Ports {
		if ready {
			p.add(e.Namespace+"/"+e.Name+"@"+peer, e.Namespace, e.Name, port.Number, port.Protocol, "", nil, e.Identities, "")
		}
	}
}

// settledCalls are what became of a check's calls in one cluster, but for those that may still come to hold: while a check
// waits, only these are made again. Where there are more than are made, the seed chooses, the same ones each time.
type settledCalls struct {
	seed uint64
	// findings by the calls' subjects; maxCalls at the most.
	findings map[string]finding
}

// choose gives the calls that are made, in their order, and how many are left out.
func (s settledCalls) choose(calls []call) (chosen []call, left int) {
	if len(calls) <= maxCalls {
		return calls, 0
	}
	rank := func(c call) uint64 {
		h := fnv.New64a()
		_ = binary.Write(h, binary.BigEndian, s.seed)
		_, _ = h.Write([]byte(c.subject))
		return h.Sum64()
	}
	ranks := make([]uint64, len(calls))
	for i, c := range calls {
		ranks[i] = rank(c)
	}
	last := slices.Sorted(slices.Values(ranks))[maxCalls-1]
	for i, c := range calls {
		if ranks[i] <= last && len(chosen) < maxCalls {
			chosen = append(chosen, c)
		}
	}
	return chosen, len(calls) - len(chosen)
}

// checkCalls has replicas call services, each through its own proxy and the service's, unless that is settled.
func checkCalls(ctx context.Context, c *client.Client, replicas []client.Replica, rules []*objects.Object, settled settledCalls) []finding {
	services, err := c.List(ctx, objects.Service, "")
	if err != nil {
		return []finding{tried("services", "list", err, "", "")}
	}
	workloads, err := c.List(ctx, objects.Workload, "")
	if err != nil {
		return []finding{tried("workloads", "list", err, "", "")}
	}
	p := newCallPlan(services.Items, workloads.Items, rules, replicas)
	p.local()
	if mesh, err := c.Federation(ctx); err == nil {
		for _, peer := range mesh.Clusters {
			for _, e := range peer.Exports {
				if !peer.Self && peer.Reachable {
					p.remote(peer.Name, e)
				}
			}
		}
	}
	calls, left := settled.choose(p.calls)
	out := make([]finding, len(calls))
	slots := make(chan struct{}, callsAtATime)
	var group sync.WaitGroup
	for i, one := range calls {
		if found, is := settled.findings[one.subject]; is {
			out[i] = found
			continue
		}
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			var result client.CallResult
			err := c.Do(ctx, http.MethodPost, agentPath(one.caller)+"/call", one.request, &result)
			out[i] = one.judge(result, err)
		})
	}
	group.Wait()
	for i, one := range calls {
		if !out[i].starting() {
			settled.findings[one.subject] = out[i]
		}
	}
	if left > 0 {
		out = append(out, warn(tried("services", "request", fmt.Errorf("%d ports of %d were not called: a check makes %d calls, chosen at random", left, len(p.calls), maxCalls), "", "run it again, which calls others; the services' metrics tell of all")))
	}
	return out
}

// judge says what a call proves: an answer of the service's own, and the identity that it came under.
func (c call) judge(result client.CallResult, err error) finding {
	from := c.caller.Namespace + "/" + c.caller.State.Name
	remedy := fmt.Sprintf("`heddle logs -n %s %s --proxy` shows how the caller's proxy ended it, `heddle proxy config -n %s %s` what it knows", c.caller.Namespace, c.caller.Workload, c.caller.Namespace, c.caller.State.Name)
	if err != nil {
		return tried(c.subject, "request", fmt.Errorf("from %s: %s", from, briefly(err)), "", remedy)
	}
	text := fmt.Sprintf("%s from %s through its proxy: %s in %s", result.Did, from, result.Answer, result.Took.Round(time.Millisecond))
	switch {
	case result.Uncaptured:
		return warn(tried(c.subject, "request", fmt.Errorf("%s from %s: %s in %s, and not through its proxy, as annotations of the workload leave it out of capture", result.Did, from, result.Answer, result.Took.Round(time.Millisecond)),
			"", "`heddle describe workload` shows what is not captured"))
	case result.Foreign && c.request.Protocol == string(model.TCP):
		return warn(tried(c.subject, "request", errors.New(text+"; its proxy is another program, which does not tell how far it came"), "", "call from a workload behind Heddle's own proxy"))
	case result.Foreign:
		return tried(c.subject, "request", nil, text+"; its proxy is another program, which does not tell whom it met", "")
	case !result.Counted:
		return unknown(tried(c.subject, "request", errors.New(text+", but its proxy did not count it: whether it passed the proxy is not known"), "", remedy))
	case result.Flags != "-" && result.Flags != "":
		return tried(c.subject, "request", fmt.Errorf("%s, by the proxy itself (%s)", text, result.Flags), "", remedy)
	case result.Identity == "" && c.plain != "":
		return tried(c.subject, "request", nil, fmt.Sprintf("%s, in plaintext, as mode %s allows", text, c.plain), "")
	case result.Identity == "":
		return tried(c.subject, "request", errors.New(text+", in plaintext although mutual TLS is asked for"), "", remedy)
	case !slices.Contains(c.identities, result.Identity):
		return final(tried(c.subject, "request", fmt.Errorf("%s, but %s answered instead of %s", text, result.Identity, list(c.identities)), "", remedy))
	}
	return tried(c.subject, "request", nil, text+", "+result.Identity+" by mutual TLS", "")
}
