package objects

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"heddle.io/heddle/api/v1alpha1"
)

// Bounds of a global namespace: each of its parts becomes configuration of every proxy.
const (
	maxMappings = 256
	maxExternal = 256
	maxPublic   = 64
	maxHosts    = 64
	maxPorts    = 64
	// maxDomain leaves room for a service's name before it (RFC 1035, section 2.3.4: 253 characters in all).
	maxDomain = 253 - 1 - validation.DNS1123LabelMaxLength
)

func defaultGlobalNamespace(g *v1alpha1.GlobalNamespace) {
	for i := range g.Spec.ExternalServices {
		for j := range g.Spec.ExternalServices[i].Ports {
			if p := &g.Spec.ExternalServices[i].Ports[j]; p.TargetPort == 0 {
				p.TargetPort = p.Port
			}
		}
	}
}

func (c *checker) globalNamespace(g *v1alpha1.GlobalNamespace) {
	s := &g.Spec
	c.globalDomain(s.Domain)
	c.mappings(s.Mappings)
	c.externalServices(s.ExternalServices)
	c.publicServices(s.PublicServices)
	c.resilience(&s.Resilience)
}

func (c *checker) globalDomain(domain string) {
	const path = "spec.domain"
	switch {
	case domain == "":
		c.fail(path, "missing", `give a DNS domain, for example "acme.demo"`)
	case len(validation.IsDNS1123Subdomain(domain)) > 0:
		c.fail(path, fmt.Sprintf("%q is not a DNS domain", domain),
			`use lower-case letters, digits, '-' and '.', for example "acme.demo"`)
	case !strings.Contains(domain, "."):
		// cart.acme would read as the service cart in the namespace acme.
		c.fail(path, fmt.Sprintf("%q has one label only", domain), `use at least two, for example "acme.demo"`)
	case len(domain) > maxDomain:
		c.fail(path, fmt.Sprintf("is longer than %d characters", maxDomain), "shorten it: services' names stand before it")
	}
}

func (c *checker) mappings(all []v1alpha1.NamespaceMapping) {
	if len(all) == 0 {
		c.fail("spec.mappings", "missing", "name at least one cluster and namespace")
	}
	c.most("spec.mappings", len(all), maxMappings)
	seen := map[v1alpha1.NamespaceMapping]int{}
	for i, m := range all {
		at := fmt.Sprintf("spec.mappings[%d]", i)
		c.mappingPattern(at+".cluster", m.Cluster, 40, "cluster1")
		c.mappingPattern(at+".namespace", m.Namespace, validation.DNS1123LabelMaxLength, "shop")
		if j, dup := seen[m]; dup {
			c.fail(at, fmt.Sprintf("is the same as mappings[%d]", j), "remove one of the two")
		}
		seen[m] = i
	}
}

func (c *checker) mappingPattern(path, v string, most int, example string) {
	switch {
	case v == "":
		c.fail(path, "missing", fmt.Sprintf(`give a name such as %q, or a pattern with "*" for any characters`, example))
	case !patternOf(v, most):
		c.fail(path, fmt.Sprintf("%q is neither a name nor a pattern", v),
			`use lower-case letters, digits, '-', and "*" for any characters`)
	}
}

func (c *checker) most(path string, got, most int) {
	if got > most {
		c.fail(path, fmt.Sprintf("has %d items", got), fmt.Sprintf("use at most %d", most))
	}
}

func (c *checker) externalServices(all []v1alpha1.ExternalService) {
	c.most("spec.externalServices", len(all), maxExternal)
	names := map[string]int{}
	for i, e := range all {
		at := fmt.Sprintf("spec.externalServices[%d]", i)
		c.dnsLabel1035(at+".name", e.Name)
		if j, dup := names[e.Name]; dup {
			c.fail(at+".name", fmt.Sprintf("%q is also the name of externalServices[%d]", e.Name, j), "use another name")
		}
		names[e.Name] = i
		c.externalHosts(at+".hosts", e.Hosts)
		c.externalPorts(at+".ports", e.Ports)
	}
}

func (c *checker) externalHosts(path string, hosts []string) {
	if len(hosts) == 0 {
		c.fail(path, "missing", "give at least one DNS name or IP address")
	}
	c.most(path, len(hosts), maxHosts)
	addresses := 0
	for i, h := range hosts {
		at := fmt.Sprintf("%s[%d]", path, i)
		a, err := netip.ParseAddr(h)
		switch {
		case err == nil && (a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback()):
			c.fail(at, fmt.Sprintf("%q is not the address of another host", h), "give the address that hosts of the service have")
		case err == nil:
			addresses++
		// What looks like an address is no name: resolvers would not agree on it.
		case len(validation.IsDNS1123Subdomain(h)) > 0, strings.Trim(h[strings.LastIndexByte(h, '.')+1:], "0123456789") == "":
			c.fail(at, fmt.Sprintf("%q is neither a DNS name nor an IP address", h),
				"write for example api.example.com or 192.0.2.10")
		}
		if slices.Index(hosts, h) < i {
			c.fail(at, fmt.Sprintf("%q is there twice", h), "remove one of the two")
		}
	}
	if addresses > 0 && addresses < len(hosts) {
		c.fail(path, "mixes DNS names and IP addresses", "make two external services of them, or use one kind")
	}
}

func (c *checker) externalPorts(path string, ports []v1alpha1.ExternalPort) {
	if len(ports) == 0 {
		c.fail(path, "missing", "give at least one port")
	}
	c.most(path, len(ports), maxPorts)
	numbers := map[int32]int{}
	for i, p := range ports {
		at := fmt.Sprintf("%s[%d]", path, i)
		if p.Name != "" {
			c.dnsLabel(at+".name", p.Name)
		}
		c.port(at+".port", int64(p.Port))
		// The same as the port by default: one message is enough.
		if p.TargetPort != p.Port {
			c.port(at+".targetPort", int64(p.TargetPort))
		}
		if j, dup := numbers[p.Port]; dup {
			c.fail(at+".port", fmt.Sprintf("%d is also the port of ports[%d]", p.Port, j), "use another port")
		}
		numbers[p.Port] = i
	}
}

func (c *checker) publicServices(all []v1alpha1.PublicService) {
	c.most("spec.publicServices", len(all), maxPublic)
	hosts := map[string]int{}
	for i, p := range all {
		at := fmt.Sprintf("spec.publicServices[%d]", i)
		c.dnsLabel1035(at+".service", p.Service)
		if p.Port != 0 {
			c.port(at+".port", int64(p.Port))
		}
		if len(validation.IsDNS1123Subdomain(p.Host)) > 0 {
			c.fail(at+".host", fmt.Sprintf("%q is not a DNS name", p.Host), `give the public name, for example "shop.example.com"`)
		}
		if j, dup := hosts[p.Host]; dup {
			c.fail(at+".host", fmt.Sprintf("%q is also the host of publicServices[%d]", p.Host, j), "use another host")
		}
		hosts[p.Host] = i
		if p.CredentialName != "" && len(validation.IsDNS1123Subdomain(p.CredentialName)) > 0 {
			c.fail(at+".credentialName", fmt.Sprintf("%q is not the name of a Secret", p.CredentialName),
				"give the name of a Secret in istio-system")
		}
	}
}

func (c *checker) resilience(r *v1alpha1.Resilience) {
	o := r.OutlierDetection
	if o == nil {
		return
	}
	const at = "spec.resilience.outlierDetection"
	if o.ConsecutiveErrors < 0 {
		c.fail(at+".consecutiveErrors", fmt.Sprintf("%d is out of range", o.ConsecutiveErrors), "use 1 or more")
	}
	if o.MaxEjectionPercent < 0 || o.MaxEjectionPercent > 100 {
		c.fail(at+".maxEjectionPercent", fmt.Sprintf("%d is not a percentage", o.MaxEjectionPercent), "use 1 to 100")
	}
	for _, f := range []struct {
		name  string
		value *metav1.Duration
	}{{"interval", o.Interval}, {"baseEjectionTime", o.BaseEjectionTime}} {
		// As in Istio, and as a proxy can keep.
		if f.value != nil && (f.value.Duration < time.Millisecond || f.value.Duration > 24*time.Hour) {
			c.fail(at+"."+f.name, fmt.Sprintf("%s is out of range", f.value.Duration), "use 1ms to 24h")
		}
	}
}
