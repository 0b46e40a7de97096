package objects

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// serviceEntryTreatments are what becomes of the fields of ServiceEntry, Istio's kind for services outside of the mesh, and for some inside that have no Service.
var serviceEntryTreatments = map[string]fields{
	"istio.networking.v1alpha3.ServiceEntry": {translated: []string{
		"hosts", "addresses", "ports", "location", "resolution", "endpoints", "workloadSelector", "exportTo", "subjectAltNames",
	}},
	"istio.networking.v1alpha3.ServicePort": {translated: []string{"number", "protocol", "name", "targetPort"}},
}

// Bounds of one ServiceEntry.
const (
	maxEntryHosts     = 256
	maxEntryAddresses = 256
	maxEntryPorts     = 256
	maxEntryEndpoints = 2000
)

func (c *checker) serviceEntry(s *networkingv1.ServiceEntry) {
	e := &s.Spec
	if len(e.Hosts) == 0 {
		c.fail("spec.hosts", "missing", "give at least one host")
	}
	c.most("spec.hosts", len(e.Hosts), maxEntryHosts)
	c.most("spec.addresses", len(e.Addresses), maxEntryAddresses)
	c.most("spec.ports", len(e.Ports), maxEntryPorts)
	c.most("spec.endpoints", len(e.Endpoints), maxEntryEndpoints)
	patterns := false
	hosts := map[string]bool{}
	for i, h := range e.Hosts {
		at := fmt.Sprintf("spec.hosts[%d]", i)
		patterns = patterns || strings.HasPrefix(h, "*")
		switch _, err := netip.ParseAddr(h); {
		case err == nil:
			c.fail(at, fmt.Sprintf("%q is an address", h), "give a DNS name here, and addresses in addresses or endpoints")
		case h == "*":
			c.fail(at, `"*" stands for every host`, `name a domain, for example "*.example.com"`)
		case !strings.Contains(h, "."):
			c.fail(at, fmt.Sprintf("%q is a short name, which stands for a Service of a namespace", h), "give a full name, for example "+h+".example.com")
		case len(h) > maxEntryHost:
			c.fail(at, fmt.Sprintf("a name of %d bytes is longer than %d, and the mesh's own server names hold it", len(h), maxEntryHost), "use a shorter name")
		default:
			c.host(at, h)
		}
		if hosts[strings.ToLower(h)] {
			c.fail(at, fmt.Sprintf("%q is there twice", h), "remove one of the two")
		}
		hosts[strings.ToLower(h)] = true
	}
	c.entryAddresses(e)
	c.entryPorts(e, patterns)
	c.exportTo("spec.exportTo", e.ExportTo)
	c.entryResolution(e, patterns)
	if e.WorkloadSelector != nil {
		c.labels("spec.workloadSelector.labels", e.WorkloadSelector.Labels)
		if len(e.WorkloadSelector.Labels) == 0 {
			c.fail("spec.workloadSelector.labels", "missing", "give labels of the workloads that serve it")
		}
	}
	for i, name := range e.SubjectAltNames {
		if name == "" || strings.Contains(name, "*") {
			c.fail(fmt.Sprintf("spec.subjectAltNames[%d]", i), fmt.Sprintf("%q is not one name", name), "give a DNS name or a URI as the certificate has it")
		}
	}
}

// maxEntryHost is in bytes: a server name of the mesh, outbound_.65535_.<subset>_.<host>, has 255 at most.
const maxEntryHost = 255 - len("outbound_.65535_._.") - validation.DNS1123LabelMaxLength

func (c *checker) entryAddresses(e *networking.ServiceEntry) {
	for i, a := range e.Addresses {
		at := fmt.Sprintf("spec.addresses[%d]", i)
		p, err := netip.ParsePrefix(a)
		if address, single := netip.ParseAddr(a); single == nil {
			p, err = netip.PrefixFrom(address.WithZone(""), address.BitLen()), nil
			c.noZone(at, address)
		}
		switch {
		case err != nil:
			c.fail(at, fmt.Sprintf("%q is neither an address nor a range", a), `write it as 192.0.2.7 or 192.0.2.0/24`)
		case p.Bits() == 0:
			c.fail(at, "is every address", "give a smaller range")
		case slices.ContainsFunc(noServices, p.Overlaps):
			c.fail(at, fmt.Sprintf("%s has addresses at which no service is: those of the machine itself, of none or of a group", a), "give the address of a service")
		}
	}
}

// noServices are the ranges of no address, of the machine itself, and of groups.
var noServices = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/32"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("::/127"), netip.MustParsePrefix("ff00::/8"),
}

// entryProtocols are the words for protocols of ports, as Istio has them, and whether the contents are read.
var entryProtocols = map[string]bool{
	"HTTP": true, "HTTP2": true, "GRPC": true, "GRPC-WEB": true, "HTTPS": false, "TLS": false, "TCP": false, "MONGO": false, "MYSQL": false, "REDIS": false,
}

func (c *checker) entryPorts(e *networking.ServiceEntry, patterns bool) {
	if len(e.Ports) == 0 {
		c.fail("spec.ports", "missing", "give at least one port")
	}
	numbers, names := map[uint32]int{}, map[string]int{}
	for i, p := range e.Ports {
		at := fmt.Sprintf("spec.ports[%d]", i)
		c.port(at+".number", int64(p.GetNumber()))
		c.dnsLabel(at+".name", p.GetName())
		if j, dup := numbers[p.GetNumber()]; dup {
			c.fail(at+".number", fmt.Sprintf("%d is also the number of ports[%d]", p.GetNumber(), j), "remove one of the two")
		}
		if j, dup := names[p.GetName()]; dup {
			c.fail(at+".name", fmt.Sprintf("%q is also the name of ports[%d]", p.GetName(), j), "use another name")
		}
		numbers[p.GetNumber()], names[p.GetName()] = i, i
		protocol := strings.ToUpper(p.GetProtocol())
		read, known := entryProtocols[protocol]
		if !known {
			c.fail(at+".protocol", fmt.Sprintf("protocol %q is not supported", p.GetProtocol()), "use HTTP, HTTP2, GRPC, HTTPS, TLS or TCP")
		}
		if p.GetTargetPort() != 0 {
			c.port(at+".targetPort", int64(p.GetTargetPort()))
			if e.Resolution == networking.ServiceEntry_NONE && p.GetTargetPort() != p.GetNumber() {
				c.fail(at+".targetPort", "cannot be with resolution NONE: connections go where they were going", "remove it, or use resolution STATIC or DNS")
			}
		}
		named := read || protocol == "TLS" || protocol == "HTTPS"
		if known && !named && len(e.Addresses) == 0 && (patterns || e.Resolution == networking.ServiceEntry_NONE) {
			c.fail(at+".protocol", fmt.Sprintf("connections of protocol %s name no host, and there are no addresses to tell them by", protocol),
				"give spec.addresses, or protocol TLS or HTTP if that is what is spoken")
		}
	}
}

func (c *checker) entryResolution(e *networking.ServiceEntry, patterns bool) {
	if len(e.Endpoints) > 0 && e.WorkloadSelector != nil {
		c.fail("spec.workloadSelector", "cannot stand beside endpoints", "leave one of the two")
	}
	dns := e.Resolution == networking.ServiceEntry_DNS || e.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN
	switch {
	case e.Resolution == networking.ServiceEntry_DYNAMIC_DNS:
		c.fail("spec.resolution", "DYNAMIC_DNS is not supported: proxies do not look up names that requests bring", "use DNS with the hosts named, or NONE")
	case e.Resolution == networking.ServiceEntry_NONE && len(e.Endpoints) > 0:
		c.fail("spec.endpoints", "cannot be with resolution NONE: connections go where they were going", "use resolution STATIC or DNS")
	case e.Resolution == networking.ServiceEntry_NONE && e.WorkloadSelector != nil:
		c.fail("spec.workloadSelector", "cannot be with resolution NONE: connections go where they were going", "use resolution STATIC")
	case dns && e.WorkloadSelector != nil:
		c.fail("spec.workloadSelector", "selects addresses, which need no DNS", "use resolution STATIC")
	case dns && patterns && len(e.Endpoints) == 0:
		c.fail("spec.endpoints", "missing: a host with * cannot be looked up", "name the endpoints, or use resolution NONE")
	case e.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN && len(e.Endpoints) > 1:
		c.fail("spec.endpoints", "resolution DNS_ROUND_ROBIN takes one endpoint", "leave one, or use resolution DNS")
	case e.Resolution == networking.ServiceEntry_STATIC && len(e.Endpoints) == 0 && e.WorkloadSelector == nil:
		c.fail("spec.endpoints", "missing", "give endpoints or a workloadSelector, or use resolution DNS")
	}
	names := map[string]bool{}
	for _, p := range e.Ports {
		names[p.GetName()] = true
	}
	for i, w := range e.Endpoints {
		at := fmt.Sprintf("spec.endpoints[%d]", i)
		c.workloadEndpoint(at, w, dns)
		for _, name := range slices.Sorted(maps.Keys(w.GetPorts())) {
			if !names[name] {
				c.fail(joinKey(at+".ports", name), "is no port of the entry", "use a name of spec.ports")
			}
		}
	}
}

// workloadEndpoint checks an endpoint as Istio's WorkloadEntry has it; with named, its address may be a DNS name.
func (c *checker) workloadEndpoint(at string, w *networking.WorkloadEntry, named bool) {
	a := w.GetAddress()
	switch address, err := netip.ParseAddr(a); {
	case a == "":
		c.fail(at+".address", "missing", "give the endpoint's address")
	case err == nil:
		c.noZone(at+".address", address)
	case strings.HasPrefix(a, "unix:"):
		c.fail(at+".address", "Unix sockets are not supported", "give an IP address")
	case !named:
		c.fail(at+".address", fmt.Sprintf("%q is not an IP address", a), "give an IP address, or a ServiceEntry with resolution DNS and the name among its endpoints")
	case len(validation.IsDNS1123Subdomain(strings.ToLower(a))) > 0:
		c.fail(at+".address", fmt.Sprintf("%q is neither an IP address nor a DNS name", a), "correct it")
	}
	for _, name := range slices.Sorted(maps.Keys(w.GetPorts())) {
		c.dnsLabel(joinKey(at+".ports", name), name)
		c.port(joinKey(at+".ports", name), int64(w.Ports[name]))
	}
	c.labels(at+".labels", w.GetLabels())
	if w.GetWeight() > maxEndpointWeight {
		c.fail(at+".weight", fmt.Sprintf("%d is too much", w.Weight), fmt.Sprintf("use at most %d", maxEndpointWeight))
	}
	if strings.Count(w.GetLocality(), "/") > 2 {
		c.fail(at+".locality", fmt.Sprintf("%q has more than three parts", w.Locality), "write region/zone/subzone")
	}
	if w.GetServiceAccount() != "" {
		if problems := validation.IsDNS1123Subdomain(w.ServiceAccount); len(problems) > 0 {
			c.fail(at+".serviceAccount", fmt.Sprintf("%q is not a valid name", w.ServiceAccount), problems[0])
		}
	}
}

// maxEndpointWeight keeps the sum of the weights of a cluster within 32 bits.
const maxEndpointWeight = 1 << 16
