package capture

import (
	"fmt"

	"heddle.io/heddle/control/agent/pinned"
)

// Status says what capture does. Counters count from the first [Attach] on, over restarts of the agent.
type Status struct {
	// Outbound are the connections of applications that went to their proxies.
	Outbound uint64 `json:"outbound"`
	// Inbound are the packets that asked for a connection and were given to a proxy: one each, more where they are repeated.
	Inbound uint64 `json:"inbound"`
	// DNS is what was brought to the cluster's DNS server: sockets that were connected to its port 53, of TCP and UDP, and datagrams
	// that were sent there otherwise. What a connected socket sends is not counted.
	DNS uint64 `json:"dns"`
	// Refused are connections, by reason: direct, to a port of the proxy that only captured ones may use; family, by addresses of the
	// family that the cluster does not have; closed, to a port on which nobody listens; no_proxy, the proxy does not listen; memory,
	// the kernel had none, also of datagrams to the cluster's DNS server; pending, the workload has 4096 connections that its proxy has not taken. Of sockets that listen: ports, there was
	// no room to note it, so that nobody reaches them from outside.
	Refused map[string]uint64 `json:"refused"`
}

// refusals' reasons, by the counter's place.
var refusals = map[programCount]string{
	programCountCOUNT_REFUSED_DIRECT: "direct", programCountCOUNT_REFUSED_FAMILY: "family", programCountCOUNT_REFUSED_CLOSED: "closed",
	programCountCOUNT_REFUSED_NO_PROXY: "no_proxy", programCountCOUNT_REFUSED_MEMORY: "memory", programCountCOUNT_REFUSED_PENDING: "pending",
	programCountCOUNT_REFUSED_PORTS: "ports",
}

// Status reads the counters.
func (c *Capture) Status() (Status, error) {
	totals, err := pinned.Counters(c.objects.Maps["counts"], int(programCountCOUNT_COUNT))
	if err != nil {
		return Status{}, fmt.Errorf("capture: %w", err)
	}
	s := Status{Outbound: totals[programCountCOUNT_OUTBOUND], Inbound: totals[programCountCOUNT_INBOUND], DNS: totals[programCountCOUNT_DNS], Refused: map[string]uint64{}}
	for i, reason := range refusals {
		s.Refused[reason] = totals[i]
	}
	return s, nil
}
