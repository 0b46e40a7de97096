package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/server/client"
)

// How a check knows.
const (
	// Tried says that it was done: a connection, a request, a question.
	Tried = "tried"
	// Read says that it is what a part of the cluster says of itself.
	Read = "read"
)

// Check is one thing that was tried or read.
type Check struct {
	// Subject is what it is about, for example "pinnacle/cartservice-0".
	Subject string `json:"subject"`
	// Name is what: ready, certificate, capture, dns, plaintext; tcp-bypass, ebpf-capture and secrets-hidden of the agent.
	Name string `json:"name"`
	// How it is known: [Tried] or [Read].
	How string `json:"how"`
	// OK says whether it holds. For plaintext it means that the connection was refused.
	OK bool `json:"ok"`
	// Unknown says that what was tried did not tell: it is neither proved nor refuted, and not OK.
	Unknown bool `json:"unknown,omitempty"`
	// Port that a connection was made to, where one was.
	Port int32 `json:"port,omitempty"`
	// Detail is the finding, Remedy what to do about a failure.
	Detail string `json:"detail,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// check tries every replica, several at a time.
func (a *Agent) check(ctx context.Context) []Check {
	all := a.all()
	results := make([][]Check, len(all))
	slots := make(chan struct{}, 4)
	var group sync.WaitGroup
	for i, r := range all {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = r.check(ctx)
		})
	}
	group.Wait()
	out := []Check{}
	if a.bypass.isToCheck() {
		out = append(out, a.bypass.check())
	}
	if a.captures.isToCheck() {
		out = append(out, a.captures.check())
	}
	for _, shown := range a.hidden().Shown {
		out = append(out, Check{Subject: "agent", Name: "secrets-hidden", How: Read, Detail: shown.Error(),
			Remedy: "until then a workload that runs as root may read the file: `heddle down --keep-data`, then `heddle up` with the file's new place"})
	}
	for _, r := range results {
		out = append(out, r...)
	}
	return out
}

func (r *replica) check(ctx context.Context) []Check {
	report := r.report()
	subject := r.spec.key()
	var out []Check
	add := func(how, name string, err error, detail, remedy string) {
		c := Check{Subject: subject, Name: name, How: how, OK: err == nil, Detail: detail}
		if err != nil {
			c.Detail, c.Remedy = err.Error(), remedy
		}
		out = append(out, c)
	}
	var notReady error
	if !report.Ready {
		notReady = fmt.Errorf("%s: %s", report.State.Phase, report.State.Message)
	}
	add(Read, "ready", notReady, fmt.Sprintf("pid %d, proxy pid %d, %s", report.State.PID, report.State.ProxyPID, report.State.Address),
		fmt.Sprintf("`heddle logs -n %s %s` shows what the application says, --proxy what its proxy says", r.spec.Namespace, r.spec.Workload))
	var invalid error
	left := time.Until(report.CertificateExpires)
	switch {
	case report.CertificateExpires.IsZero():
		invalid = errors.New("no certificate yet: " + report.CertificateProblem)
	case left <= 0:
		invalid = fmt.Errorf("expired %s ago: %s", -left.Round(time.Second), report.CertificateProblem)
	}
	add(Read, "certificate", invalid, "valid for "+left.Round(time.Second).String(), "the controller signs certificates: see `heddle logs --controller`")
	if r.spec.Gateway {
		return out
	}
	how, uncaptured := r.captured()
	add(Read, "capture", uncaptured, how, fmt.Sprintf("`heddle restart -n %s %s` installs them anew", r.spec.Namespace, r.spec.Workload))
	answered, err := r.checkDNS(ctx)
	add(Tried, "dns", err, answered, "names are answered by a process of the cluster: see "+r.agent.config.Cluster.Logs()+"/dns.log")
	if port := r.plainPort(); port != 0 && notReady == nil {
		out = append(out, r.checkPlaintext(ctx, port))
	}
	return out
}

// checkDNS asks for a known service from inside.
func (r *replica) checkDNS(ctx context.Context) (string, error) {
	known := r.agent.knownHost(r.spec.Namespace)
	if known == nil {
		// Any answer will do; that there is no such name is one.
		_, err := r.resolve(ctx, "heddle-check.svc."+cluster.Domain)
		if err != nil && !errors.As(err, new(refusedName)) {
			return "", err
		}
		return "answers", nil
	}
	got, err := r.resolve(ctx, known.Name)
	if err != nil {
		return "", err
	}
	want := known.Addresses[0]
	if !slices.Contains(got, want) {
		return "", fmt.Errorf("%s is answered with %v instead of %s", known.Name, got, want)
	}
	return known.Name + " is " + want.String(), nil
}

// knownHost is some host with an address that a namespace sees, or nil.
func (a *Agent) knownHost(namespace string) *client.NamedHost {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.names.Hosts {
		host := &a.names.Hosts[i]
		if len(host.Addresses) > 0 && (!host.Limited || slices.Contains(host.Namespaces, namespace)) {
			return host
		}
	}
	return nil
}

// plainPort is a port of the application that is captured, or 0.
func (r *replica) plainPort() int32 {
	for _, p := range r.spec.Ports {
		if r.spec.Interception.CaptureInbound(uint16(p.Port)) {
			return p.Port
		}
	}
	port := int32(0)
	switch p := r.spec.Readiness; {
	case len(r.spec.Ports) > 0, p == nil:
	case p.TCP != nil:
		port = p.TCP.Port
	case p.HTTP != nil:
		port = p.HTTP.Port
	case p.GRPC != nil:
		port = p.GRPC.Port
	}
	if !r.spec.Interception.CaptureInbound(uint16(port)) {
		return 0
	}
	return port
}
