package dns

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/server/client"
)

// Table is what the server knows, as the agent writes it.
type Table struct {
	// Names are the hosts, as the controller tells them.
	Names client.Names `json:"names"`
	// Namespaces maps a workload's address to its namespace: it says what the workload sees, and completes short names
	// of clients that do not use the search list.
	Namespaces map[netip.Addr]string `json:"namespaces,omitempty"`
}

// ReadTable reads a kept table. A missing file gives os.ErrNotExist.
func ReadTable(path string) (Table, error) {
	var t Table
	if err := durable.ReadJSON(path, &t); err != nil {
		return Table{}, fmt.Errorf("kept names: %w", err)
	}
	return t, nil
}

// WriteTable keeps a table in one step: whoever reads it gets all of it or of the one before.
func WriteTable(path string, t Table) error {
	content, err := json.Marshal(t)
	if err == nil {
		err = durable.Write(path, content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep names: %w", err)
	}
	return nil
}

// index is a table for looking up.
type index struct {
	domain     string
	hosts      map[string][]*client.NamedHost
	namespaces map[netip.Addr]string
}

func newIndex(t Table) *index {
	x := &index{domain: t.Names.Domain, hosts: make(map[string][]*client.NamedHost, len(t.Names.Hosts)), namespaces: t.Namespaces}
	if x.domain == "" {
		x.domain = cluster.Domain
	}
	for i := range t.Names.Hosts {
		h := &t.Names.Hosts[i]
		x.hosts[h.Name] = append(x.hosts[h.Name], h)
	}
	return x
}

// find looks up a lower-case name without the final dot. Short forms of the names of services (service, service.namespace
// and service.namespace.svc) are completed as the search list would.
func (x *index) find(name string, source netip.Addr) *client.NamedHost {
	namespace := x.namespaces[source]
	if host := x.exact(name, namespace); host != nil {
		return host
	}
	switch labels := strings.Count(name, ".") + 1; {
	case labels == 1 && name != "" && namespace != "":
		return x.exact(name+"."+namespace+".svc."+x.domain, namespace)
	case labels == 2:
		return x.exact(name+".svc."+x.domain, namespace)
	case labels == 3 && strings.HasSuffix(name, ".svc"):
		return x.exact(name+"."+x.domain, namespace)
	}
	return nil
}

// exact looks up a name as it is, among those that a namespace sees.
func (x *index) exact(name, namespace string) *client.NamedHost {
	for _, host := range x.hosts[name] {
		if !host.Limited || slices.Contains(host.Namespaces, namespace) {
			return host
		}
	}
	return nil
}

// owns says whether a name is ours to deny: the cluster's domain, ".svc", and names of one label, which no resolver
// outside can know.
func (x *index) owns(name string) bool {
	return name == x.domain || strings.HasSuffix(name, "."+x.domain) || strings.HasSuffix(name, ".svc") ||
		(!strings.Contains(name, ".") && name != "")
}
