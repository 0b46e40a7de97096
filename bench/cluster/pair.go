package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"heddle.io/heddle/bench/load"
	"heddle.io/heddle/bench/process"
	"heddle.io/heddle/control/server/client"
)

// Names of the workloads of each namespace, which have one replica each.
const (
	clientWorkload = "client"
	serverWorkload = "server"
)

// readyBound is how long all replicas may take to be ready, and answerBound a server to answer then.
const (
	readyBound  = time.Minute
	answerBound = 10 * time.Second
)

// Pair is a client's place and its server, with a way between.
type Pair struct {
	Way
	// Client is where a load generator belongs, and URL what it asks for.
	Client process.Place
	URL    string
	// Processes of each; of sidecars that are not used, too.
	clientSidecar, serverSidecar, server process.Group
	cluster                              *Cluster
}

// Start applies the manifests of all ways and waits until each client's requests are answered. Programs that talk to each other are on
// different processors, as far as there are enough.
func (c *Cluster) Start(ctx context.Context, ways []Way) ([]*Pair, error) {
	var all [][]byte
	for _, w := range ways {
		one, err := w.manifests(c.envoy)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if _, err := c.heddle(ctx, slices.Concat(separated(all)...), "apply", "-f", "-"); err != nil {
		return nil, err
	}
	addresses, err := c.ready(ctx, ways)
	if err != nil {
		return nil, err
	}
	var pairs []*Pair
	for _, w := range ways {
		p, err := c.pair(ctx, w, addresses[w.Name])
		if err == nil {
			err = p.ask(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.Name, err)
		}
		pairs = append(pairs, p)
	}
	return pairs, nil
}

// separated puts YAML's separator between documents.
func separated(documents [][]byte) (all [][]byte) {
	for _, d := range documents {
		all = append(all, d, []byte("---\n"))
	}
	return all
}

// ready waits for all replicas, and gives the servers' addresses by namespace.
func (c *Cluster) ready(ctx context.Context, ways []Way) (map[string]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	for {
		var replicas []client.Replica
		if err := c.get(ctx, &replicas, "ps", "-A"); err != nil {
			return nil, err
		}
		servers, missing := readyServers(ways, replicas)
		if len(missing) == 0 {
			return servers, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("not ready: %s: %w", strings.Join(missing, "; "), ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// readyServers gives the servers' addresses by namespace, and which replicas are not ready.
func readyServers(ways []Way, replicas []client.Replica) (servers map[string]netip.Addr, missing []string) {
	servers = map[string]netip.Addr{}
	for _, w := range ways {
		for _, workload := range []string{clientWorkload, serverWorkload} {
			at := slices.IndexFunc(replicas, func(r client.Replica) bool { return r.Namespace == w.Name && r.Workload == workload })
			if at < 0 {
				missing = append(missing, fmt.Sprintf("%s/%s has no replica", w.Name, workload))
				continue
			}
			r := replicas[at]
			address, err := netip.ParseAddr(r.State.Address)
			if !r.Ready || err != nil {
				missing = append(missing, strings.TrimSpace(fmt.Sprintf("%s/%s %s", w.Name, workload, r.State.Message)))
			}
			if workload == serverWorkload {
				servers[w.Name] = address
			}
		}
	}
	return servers, missing
}

// pair finds a way's processes, and gives each its processor.
func (c *Cluster) pair(ctx context.Context, w Way, server netip.Addr) (*Pair, error) {
	p := &Pair{Way: w, cluster: c, URL: fmt.Sprintf("http://%s/", netip.AddrPortFrom(server, serverPort))}
	if !w.Direct {
		var service struct {
			Spec struct{ ClusterIP netip.Addr }
		}
		if err := c.get(ctx, &service, "get", "service", serverWorkload, "-n", w.Name); err != nil {
			return nil, err
		}
		p.URL = fmt.Sprintf("http://%s/", netip.AddrPortFrom(service.Spec.ClusterIP, servicePort))
	}
	// Programs of the workload are known by its control group.
	p.Client = process.Place{Netns: c.place.Netns(w.Name, replica(clientWorkload)), Cgroup: c.group(w.Name, clientWorkload, "app")}
	for turn, part := range []struct {
		into      *process.Group
		directory string
	}{
		{&p.clientSidecar, c.group(w.Name, clientWorkload, "proxy")}, {&p.serverSidecar, c.group(w.Name, serverWorkload, "proxy")},
		{&p.server, c.group(w.Name, serverWorkload, "app")},
	} {
		var err error
		if *part.into, err = process.Members(part.directory); err != nil {
			return nil, err
		}
		// The client has the first.
		if err := part.into.Pin((turn + 1) % runtime.NumCPU()); err != nil {
			return nil, err
		}
	}
	return p, errors.Join(p.runs(p.clientSidecar), p.runs(p.serverSidecar), p.captured(clientWorkload), p.captured(serverWorkload))
}

// replica is the name of a workload's only one.
func replica(workload string) string { return workload + "-0" }

// group is the directory of a part of a replica: app or proxy.
func (c *Cluster) group(namespace, workload, part string) string {
	return filepath.Join(c.groups, namespace+"."+replica(workload), part)
}

// ask waits until the server answers the client: proxies hear of endpoints that are ready a moment later.
func (p *Pair) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	for {
		_, err := load.AtRate(p.Client, p.URL, 1, 1000, time.Millisecond)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not answered: %w: %w", p.URL, ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
