package peers

import (
	"fmt"
	"os"
	"slices"

	"heddle.io/heddle/bench/process"
	"heddle.io/heddle/control/cluster"
)

// SidecarWork says what a sidecar is and does.
type SidecarWork struct {
	// Envoy is a stock one in heddle-proxy's place, with the same configuration but for IstioMetrics, which it has not.
	Envoy bool
	// MutualTLS between sidecars.
	MutualTLS bool
	// IstioMetrics counts requests by Istio's labels, and exchanges the peers' metadata for it.
	IstioMetrics bool
	// AccessLog has a line for each request.
	AccessLog bool
	// Policy lets in who has the sidecars' name alone. Needs MutualTLS.
	Policy bool
	// Bypassed has it expect that peers bypass TCP.
	Bypassed bool
}

// Sidecar starts a proxy with one worker as a workload's sidecar: what comes to the outbound port goes to server (an address
// and port), what comes to the inbound port to the address that was dialled, from 127.0.0.6. With mutual TLS, sidecars
// have the certificate that is in dir, which is made where it is missing. dir becomes the sidecar's user's.
func Sidecar(name string, at process.Place, dir, server string, work SidecarWork, binaries Binaries) (*process.Process, error) {
	s := settings{Dir: dir, AdminPort: cluster.PortAdmin, IstioMetrics: work.IstioMetrics, AccessLog: work.AccessLog}
	if work.Policy {
		s.Policies = 1
	}
	if work.Envoy && work.IstioMetrics {
		return nil, fmt.Errorf("%s: a stock Envoy has none of Istio's metrics", name)
	}
	if work.Policy && !work.MutualTLS {
		return nil, fmt.Errorf("%s: a policy on names needs mutual TLS", name)
	}
	var err error
	if s.BackendHost, s.BackendPort, err = split(server); err != nil {
		return nil, err
	}
	if work.MutualTLS {
		if s.Certificate, s.Key, s.Bundle, err = certificate(dir, "ecdsa"); err != nil {
			return nil, err
		}
	}
	config, err := write(dir, "sidecar.yaml", s)
	if err != nil {
		return nil, err
	}
	for _, path := range []string{dir, config, s.Certificate, s.Key} {
		if path == "" {
			continue
		}
		if err := os.Chown(path, int(at.User), int(at.User)); err != nil {
			return nil, fmt.Errorf("give %s's files to its user: %w", name, err)
		}
	}
	argv := append(slices.Clone(binaries.Under), binaries.Heddle)
	if work.Envoy {
		argv = []string{binaries.Envoy, "--disable-hot-restart"}
	}
	if work.Bypassed {
		argv = append(argv, "--tcp-bypass")
	}
	p, err := process.Start(name, at, append(argv, "-c", config, "--concurrency", "1", "-l", "warn")...)
	if err != nil {
		return nil, err
	}
	return ready(p, fmt.Sprintf("127.0.0.1:%d", s.AdminPort))
}
