package federation

import (
	"maps"
	"sync"
)

// Names of counters, as `heddle cluster status -o json` shows them.
const (
	countConnections        = "connections"
	countConnectionsRefused = "connectionsRefused"
	countHandshakesFailed   = "handshakesFailed"
	countJoins              = "joins"
	countRepairs            = "joinsRepaired"
	countJoinsRefused       = "joinsRefused"
	countRenewals           = "intermediatesRenewed"
	countWorkloadRenewals   = "workloadRenewals"
	countCallsRefused       = "callsRefused"
	countStreams            = "streams"
	countStreamsReplaced    = "streamsReplaced"
	countStreamsSilent      = "streamsSilent"
	countStatesReceived     = "statesReceived"
	countStatesRefused      = "statesRefused"
	countStatesSkipped      = "statesSkipped"
	countPeersCut           = "peersCut"
	countUpdatesSent        = "updatesSent"
	countUpdatesReceived    = "updatesReceived"
	countUpdatesRefused     = "updatesRefused"
	countAnchorsRefused     = "anchorsRefused"
	countAttempts           = "connectionAttempts"
	countAttemptsFailed     = "connectionAttemptsFailed"
	countProbes             = "probes"
	countProbesFailed       = "probesFailed"
	countTokensMade         = "tokensMade"
	countTokensSwept        = "tokensSwept"
	countReplicaFailures    = "replicationsFailed"
	countNotKept            = "statesNotKept"
	countRootSteps          = "rootChangeSteps"
	countProgressDelayed    = "rootProgressDelayed"
)

// counters count what happened since the controller started.
type counters struct {
	mu     sync.Mutex
	values map[string]uint64
}

func newCounters() *counters { return &counters{values: map[string]uint64{}} }

func (c *counters) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.values[name]++
}

func (c *counters) snapshot() map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.values)
}
