package registry

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"heddle.io/heddle/control/durable"
)

// Globals keeps the virtual addresses of imported and external services: a host that once had an address keeps it,
// because applications and resolvers may hold on to it while the other cluster is away. Only when the range is used up
// are addresses of hosts that are gone given to others. It is safe for concurrent use.
type Globals struct {
	mu     sync.Mutex
	path   string
	within netip.Prefix
	hosts  map[string]netip.Addr
}

// globalsFile is the form on disk.
type globalsFile struct {
	// Addresses by host.
	Addresses map[string]netip.Addr `json:"addresses"`
}

// OpenGlobals reads the addresses kept in a file; it need not exist, its directory must. A file that cannot be read, or
// that holds an address twice or outside the range, is an error: giving other addresses could send traffic elsewhere.
func OpenGlobals(path string, within netip.Prefix) (*Globals, error) {
	g := &Globals{path: path, within: within, hosts: map[string]netip.Addr{}}
	var file globalsFile
	err := durable.ReadJSON(path, &file)
	if errors.Is(err, os.ErrNotExist) {
		return g, nil
	}
	if err != nil {
		return nil, fmt.Errorf("addresses of global names: %w; restore the file, or remove it to have new addresses given", err)
	}
	owner := map[netip.Addr]string{}
	for host, a := range file.Addresses {
		if other, dup := owner[a]; dup || !within.Contains(a) {
			return nil, fmt.Errorf("addresses of global names in %s: %s of %s is %s; restore the file, or remove it to have new addresses given",
				path, a, host, map[bool]string{true: "also that of " + other, false: "outside of " + within.String()}[dup])
		}
		owner[a], g.hosts[host] = host, a
	}
	return g, nil
}

// Assign gives each host its address. New ones are on disk before it returns, or it fails and keeps none of them.
func (g *Globals) Assign(hosts []string) (map[string]netip.Addr, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make(map[string]netip.Addr, len(hosts))
	var fresh []string
	for _, h := range hosts {
		if a, ok := g.hosts[h]; ok {
			out[h] = a
		} else {
			fresh = append(fresh, h)
		}
	}
	if len(fresh) == 0 {
		return out, nil
	}
	// Sorted, so that the same names get the same addresses in whatever order they come.
	slices.Sort(fresh)
	next, err := g.extend(g.hosts, fresh)
	if errors.Is(err, ErrAddressesExhausted) {
		// Hosts that are not asked for are gone.
		next, err = g.extend(out, fresh)
	}
	if err != nil {
		return nil, fmt.Errorf("addresses of global names in %s: %w; remove global namespaces or external services", g.within, err)
	}
	if err := g.keep(next); err != nil {
		return nil, fmt.Errorf("keep addresses of global names in %s: %w", g.path, err)
	}
	g.hosts = next
	for _, h := range fresh {
		out[h] = next[h]
	}
	return out, nil
}

func (g *Globals) extend(kept map[string]netip.Addr, fresh []string) (map[string]netip.Addr, error) {
	next, taken := make(map[string]netip.Addr, len(kept)+len(fresh)), make(map[netip.Addr]bool, len(kept))
	for h, a := range kept {
		next[h], taken[a] = a, true
	}
	for _, h := range fresh {
		if _, twice := next[h]; twice {
			continue
		}
		a, err := freeAddress(g.within, h, func(a netip.Addr) bool { return taken[a] })
		if err != nil {
			return nil, err
		}
		next[h], taken[a] = a, true
	}
	return next, nil
}

// keep replaces the file at once: after a crash it is the old or the new one.
func (g *Globals) keep(hosts map[string]netip.Addr) error {
	return durable.WriteJSON(g.path, globalsFile{Addresses: hosts}, 0o644)
}
