package resolve

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// entryServices are the services of one ServiceEntry, one for each host, and the hosts that need a virtual address.
type entryServices struct {
	services    []*model.Service
	unaddressed []string
}

// entryState is what ServiceEntries come to.
type entryState struct {
	// byHost are their services by host, byClaim by an address (or range) and port that only one may listen on.
	byHost, byClaim hostIndex[*model.Service]
	// changed are hosts whose service is to be found anew, contested those whose ServiceEntries may conflict anew; reclaimed are
	// claims that other entries have than before.
	changed, contested, reclaimed map[string]bool
	// contest is who is in force, as far as it was asked for since something changed.
	contest contest
	// unaddressed are hosts that need a virtual address, with the number of entries that say so; sorted is nil when stale.
	unaddressed map[string]int
	sorted      []string
}

func newEntryState() entryState {
	return entryState{
		byHost: hostIndex[*model.Service]{}, byClaim: hostIndex[*model.Service]{}, changed: map[string]bool{}, contested: map[string]bool{}, reclaimed: map[string]bool{},
		unaddressed: map[string]int{},
	}
}

// hostsBeside are the hosts that need a virtual address, with others that do, sorted.
func (s *entryState) hostsBeside(others []string) []string {
	if len(s.unaddressed) == 0 {
		return others
	}
	if s.sorted == nil {
		s.sorted = slices.Sorted(maps.Keys(s.unaddressed))
	}
	if len(others) == 0 {
		return s.sorted
	}
	all := slices.Concat(s.sorted, others)
	slices.Sort(all)
	return slices.Compact(all)
}

// serviceEntry makes the services of a ServiceEntry.
func (b *builder) serviceEntry(o *objects.Object, s *networkingv1.ServiceEntry) *entryServices {
	e := &s.Spec
	replicas, identities := b.entryReplicas(o, e)
	given, listen := b.entryAddresses(o, e)
	out := &entryServices{}
	if b.administers(o, e) {
		return out
	}
	for i, h := range e.Hosts {
		host, at := strings.ToLower(strings.TrimSuffix(h, ".")), fmt.Sprintf("spec.hosts[%d]", i)
		if !b.ownHost(o, at, host) {
			continue
		}
		svc := &model.Service{
			Namespace: o.GetNamespace(), Host: host, Replicas: replicas, Identities: identities,
			ExportTo: visibility(e.ExportTo, o.GetNamespace()), Source: source(o).At(at),
		}
		entry := &model.Entry{
			Resolution: model.ResolveDNS, Mesh: e.Location == networking.ServiceEntry_MESH_INTERNAL, Addresses: given,
			SubjectNames: e.SubjectAltNames, Selector: e.GetWorkloadSelector().GetLabels(),
		}
		svc.Name, svc.External = svc.Host, &model.External{Entry: entry}
		switch e.Resolution {
		case networking.ServiceEntry_NONE:
			entry.Resolution = model.ResolveNone
		case networking.ServiceEntry_STATIC:
			entry.Resolution = model.ResolveStatic
		case networking.ServiceEntry_DNS_ROUND_ROBIN:
			entry.Balance = model.RoundRobin
		}
		if i == 0 {
			// Connections tell the address alone: they are the first host's.
			entry.Listen = listen
		}
		if b.entryAddress(o, svc, entry) {
			out.unaddressed = append(out.unaddressed, svc.Host)
		}
		if entry.Resolution == model.ResolveDNS {
			entry.Hosts = entryHosts(svc.Host, e)
		}
		for _, p := range e.Ports {
			svc.Ports = append(svc.Ports, entryPort(p))
		}
		out.services = append(out.services, svc)
	}
	return out
}

// entryAddress gives a service its virtual address when it has none of its own and needs one: without, hosts could not be told
// apart on ports that name none, and DNS had no answer. It says whether the service needs one.
func (b *builder) entryAddress(o *objects.Object, svc *model.Service, entry *model.Entry) bool {
	switch {
	case len(entry.Addresses) > 0:
		svc.Address = entry.Addresses[0]
	case svc.Pattern() || entry.Resolution == model.ResolveNone:
		entry.ByName = true
	case len(entry.Listen) > 0:
		// Whole ranges: the names are answered by whoever knows them.
	default:
		b.look(factAddress, svc.Host, "", "")
		a, ok := b.m.addresses[svc.Host]
		if !ok {
			b.report.missing(o.Key(), "NoAddress", svc.Source.Path, svc.Host+" has no virtual address yet", "it gets one; if this stays, read the controller's log")
			entry.ByName = true
			return true
		}
		svc.Address, entry.Addresses, entry.Listen = a, []netip.Addr{a}, []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
		return true
	}
	return false
}

// entryAddresses are those that DNS answers with, and all that connections are taken from the entry for.
func (b *builder) entryAddresses(o *objects.Object, e *networking.ServiceEntry) (given []netip.Addr, listen []netip.Prefix) {
	for i, text := range e.Addresses {
		at := fmt.Sprintf("spec.addresses[%d]", i)
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, err := netip.ParseAddr(text)
			if err != nil {
				continue // Its form was checked.
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		p = p.Masked()
		switch {
		case p.Addr().Is6() != (b.settings.Family == cluster.IPv6):
			b.report.missing(o.Key(), "OtherFamily", at, fmt.Sprintf("%s cannot be reached from %s, which has %s addresses only", text, b.settings.Cluster, b.settings.Family),
				"give an address of that family")
		case p.Overlaps(b.settings.Services) || p.Overlaps(b.settings.Globals) || p.Overlaps(b.settings.Family.Ranges().Pods):
			b.report.refuse(o.Key(), "AddressTaken", at, fmt.Sprintf("%s is among the mesh's own addresses", text),
				"give the address that the service really has, or leave addresses out to get a virtual one")
		case slices.Contains(listen, p):
			b.report.note(o.Key(), at, fmt.Sprintf("%s is the range of an address before it", text))
		default:
			listen = append(listen, p)
			if p.IsSingleIP() {
				given = append(given, p.Addr())
			}
		}
	}
	return given, listen
}

func entryPort(p *networking.ServicePort) model.ServicePort {
	word := strings.ToUpper(p.Protocol)
	protocol, _ := model.ProtocolOf(word, "")
	target := p.TargetPort
	if target == 0 {
		target = p.Number
	}
	return model.ServicePort{
		Name: p.Name, Number: uint16(p.Number), Protocol: protocol, Target: uint16(target), Sealed: word == "TLS" || word == "HTTPS",
	}
}

// entryReplicas are the endpoints of an entry: those that it names, or what its selector selects; and who may answer.
func (b *builder) entryReplicas(o *objects.Object, e *networking.ServiceEntry) (out []*model.Replica, identities []string) {
	if e.Resolution != networking.ServiceEntry_STATIC {
		return nil, nil
	}
	ns := o.GetNamespace()
	if selector := e.GetWorkloadSelector().GetLabels(); selector != nil {
		out = b.replicasIn(ns, selector)
		for _, w := range b.workloadsIn(ns, selector) {
			identities = append(identities, b.settings.Identity(ns, cmp.Or(w.Spec.ServiceAccount, "default")))
		}
		if len(out)+len(identities) == 0 {
			b.report.missing(o.Key(), "NoWorkload", "spec.workloadSelector", "selects no workload",
				"apply a WorkloadEntry or Workload with these labels, in the same namespace")
		}
	}
	for i, w := range e.Endpoints {
		r := b.endpoint(ns, fmt.Sprintf("%s:%d", o.GetName(), i), w)
		if !b.reachable(o, fmt.Sprintf("spec.endpoints[%d].address", i), r.Address) {
			continue
		}
		out = append(out, r)
	}
	if e.Location != networking.ServiceEntry_MESH_INTERNAL {
		return out, nil
	}
	for _, r := range out {
		if r.Account != "" {
			identities = append(identities, b.settings.Identity(r.Namespace, r.Account))
		}
	}
	for _, name := range e.SubjectAltNames {
		if _, _, ok := cluster.AccountOf(b.settings.TrustDomain, name); ok {
			identities = append(identities, name)
		}
	}
	slices.Sort(identities)
	return out, slices.Compact(identities)
}

// reachable notes an endpoint whose address is of another family than the cluster's.
func (b *builder) reachable(o *objects.Object, at string, a netip.Addr) bool {
	if a.Is6() == (b.settings.Family == cluster.IPv6) {
		return true
	}
	b.report.missing(o.Key(), "OtherFamily", at, fmt.Sprintf("%s cannot be reached from %s, which has %s addresses only", a, b.settings.Cluster, b.settings.Family),
		"give an address of that family")
	return false
}

// entryHosts are the names that proxies look up: the endpoints', else the service's own.
func entryHosts(host string, e *networking.ServiceEntry) []model.EntryHost {
	if len(e.Endpoints) == 0 {
		return []model.EntryHost{{Host: host}}
	}
	out := make([]model.EntryHost, 0, len(e.Endpoints))
	for _, w := range e.Endpoints {
		out = append(out, model.EntryHost{
			Host: strings.ToLower(w.Address), Ports: servicePorts(w.Ports), Labels: w.Labels, Weight: w.Weight, Locality: localityOf(w.Locality),
		})
	}
	return out
}

// setEntry takes note of the services of an entry that are there, or not any more.
func (m *Model) setEntry(p *entryServices, there bool) {
	x := &m.external
	for _, s := range p.services {
		key := s.Source.Key
		x.byHost.set(s.Host, key, s, there)
		x.changed[s.Host] = true
		for _, claim := range claims(s) {
			x.byClaim.set(claim, key, s, there)
			x.reclaimed[claim] = true
		}
		m.say(key, saidConflict, nil)
	}
	for _, host := range p.unaddressed {
		was, by := x.unaddressed[host], -1
		if there {
			by = 1
		}
		if x.unaddressed[host] = was + by; was+by == 0 {
			delete(x.unaddressed, host)
		}
		if was == 0 || was+by == 0 {
			x.sorted = nil
		}
	}
}

// setAddresses takes the virtual addresses as they are now.
func (m *Model) setAddresses(now map[string]netip.Addr) {
	was := m.addresses
	m.addresses = now
	changed := func(host string) {
		m.touch(fact{kind: factAddress, a: host})
		if _, global := slices.BinarySearch(m.global.wanted, host); global {
			m.globalsChanged = true
		}
	}
	for host, a := range now {
		if was[host] != a {
			changed(host)
		}
	}
	for host := range was {
		if _, there := now[host]; !there {
			changed(host)
		}
	}
}
