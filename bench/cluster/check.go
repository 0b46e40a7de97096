package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"heddle.io/heddle/bench/process"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/objects"
)

// runs is an error unless the sidecar is the program that is to be measured.
func (p *Pair) runs(sidecar process.Group) error {
	program := p.cluster.proxy
	if p.Envoy {
		program = p.cluster.envoy
	}
	want, err := os.Stat(program)
	if err != nil {
		return err
	}
	for _, pid := range sidecar {
		if is, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && os.SameFile(is, want) {
			return nil
		}
	}
	return fmt.Errorf("none of a sidecar's processes %v runs %s", sidecar, program)
}

// captured is an error unless a workload's namespace has rules of the packet filter just where these capture.
func (p *Pair) captured(workload string) error {
	netns := p.cluster.place.Netns(p.Name, replica(workload))
	return network.In(netns, func() error {
		tables, err := exec.Command("nft", "list", "tables").CombinedOutput()
		if err != nil {
			return fmt.Errorf("list the packet filter's tables in %s: %w: %s", netns, err, tables)
		}
		if rules := !p.EBPF && !p.Direct; rules != (len(tables) > 0) {
			return fmt.Errorf("%s has the tables %q of the packet filter, although rules are to capture: %t", netns, tables, rules)
		}
		return nil
	})
}

// LeastBypassed is the share of the messages that could bypass TCP which must have: connections begin to some tenths of a second after they were made.
const LeastBypassed = 0.9

// Bypassable messages of a request, by the mode of both workloads: from the client, from both sidecars to each other, and from the server; with
// both, also those from the sidecars to these two.
func Bypassable(mode string) int {
	switch mode {
	case objects.BypassSend:
		return 4
	case objects.BypassBoth:
		return 6
	}
	return 0
}

// Check says in what a run with so many answers was not what the way says.
func (w Way) Check(before, after Counts, answers int64) error {
	var errs []error
	fail := func(format string, values ...any) { errs = append(errs, fmt.Errorf(format, values...)) }
	n := float64(answers)
	// A request of each connection may be under way when a load generator ends, and each connection is opened by one that is not counted.
	about := func(got float64) bool { return got >= n && got <= 1.01*n+100 }
	if got := after.outbound - before.outbound; w.Direct && got != 0 || !w.Direct && !about(got) {
		fail("the client's sidecar passed on %.0f requests, and %d were answered", got, answers)
	}
	if got := after.inbound - before.inbound; w.Direct && got != 0 || !w.Direct && !about(got) {
		fail("the server's sidecar passed on %.0f requests, and %d were answered", got, answers)
	}
	// Connections between sidecars outlive a run, so that it may have no handshake of its own.
	if (after.handshakes > 0) != w.MutualTLS {
		fail("the server's sidecar had %.0f handshakes of TLS, and mutual TLS is to be: %t", after.handshakes, w.MutualTLS)
	}
	counted, mutual := after.requests-before.requests, after.mutualTLS-before.mutualTLS
	switch metrics := !w.Direct && !w.Envoy && !w.NoTelemetry; {
	case metrics && !about(counted), !metrics && counted != 0:
		fail("Istio's metrics counted %.0f requests of %d answers, and are to be: %t", counted, answers, metrics)
	case metrics && w.MutualTLS && mutual != counted, !w.MutualTLS && mutual != 0:
		fail("Istio's metrics counted %.0f requests by mutual TLS, which is to be: %t", mutual, w.MutualTLS)
	}
	for i, workload := range []string{clientWorkload, serverWorkload} {
		if logs := !w.Direct && !w.NoTelemetry; logs != after.logged[i].After(before.logged[i]) {
			fail("the %s's sidecar is to write an access log: %t, and its log was last written to at %v, and at %v before the run", workload, logs,
				after.logged[i], before.logged[i])
		}
	}
	bypassed := float64(after.Messages-before.Messages) / n
	switch want := Bypassable(w.Bypass); {
	case want == 0 && bypassed > 0:
		fail("%.2f messages of a request bypassed TCP, where none may", bypassed)
	case bypassed < LeastBypassed*float64(want):
		fail("%.2f messages of a request bypassed TCP, of %d", bypassed, want)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("this run does not measure %s: %w", w.Name, err)
	}
	return nil
}
