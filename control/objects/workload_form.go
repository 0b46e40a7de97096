package objects

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"heddle.io/heddle/api/v1alpha1"
)

// maxReplicas bounds the replicas of one workload on one host.
const maxReplicas = 1000

func defaultWorkload(w *v1alpha1.Workload) {
	s := &w.Spec
	if s.Replicas == nil {
		one := int32(1)
		s.Replicas = &one
	}
	if s.ServiceAccount == "" {
		s.ServiceAccount = "default"
	}
	if s.Restart == "" {
		s.Restart = v1alpha1.RestartAlways
	}
	for i := range s.Ports {
		if s.Ports[i].Protocol == "" {
			s.Ports[i].Protocol = "TCP"
		}
	}
	if r := s.Readiness; r != nil {
		for field, value := range map[*int32]int32{
			&r.PeriodSeconds: 1, &r.TimeoutSeconds: 1, &r.SuccessThreshold: 1, &r.FailureThreshold: 3,
		} {
			if *field == 0 {
				*field = value
			}
		}
		if r.HTTP != nil && r.HTTP.Path == "" {
			r.HTTP.Path = "/"
		}
	}
}

func (c *checker) workload(w *v1alpha1.Workload) {
	s := &w.Spec
	c.proxyConfigAnnotation(w.Annotations[AnnotationProxyConfig])
	c.captureAnnotation(w.Annotations)
	c.interceptionAnnotations(w.Annotations)
	c.bypassAnnotation(w.Annotations)
	if s.Cluster != "" {
		c.dnsLabel("spec.cluster", s.Cluster)
	}
	if n := *s.Replicas; n < 0 || n > maxReplicas {
		c.fail("spec.replicas", fmt.Sprintf("%d is out of range", n), fmt.Sprintf("use 0 to %d", maxReplicas))
	}
	if problems := validation.IsDNS1123Subdomain(s.ServiceAccount); len(problems) > 0 {
		c.fail("spec.serviceAccount", fmt.Sprintf("%q is not a valid name", s.ServiceAccount), problems[0])
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		c.fail("spec.command", "missing", "give the program to run, for example [/usr/bin/redis-server]")
	}
	for i, arg := range append(append([]string(nil), s.Command...), s.Args...) {
		if strings.ContainsRune(arg, 0) {
			c.fail("spec.command", fmt.Sprintf("argument %d has a NUL byte", i), "remove it")
		}
	}
	names := map[string]bool{}
	for i, e := range s.Env {
		at := fmt.Sprintf("spec.env[%d]", i)
		if e.Name == "" || strings.ContainsAny(e.Name, "=\x00") || strings.ContainsRune(e.Value, 0) {
			c.fail(at+".name", fmt.Sprintf("%q is not a variable name", e.Name), "use a name without '='")
		}
		if names[e.Name] {
			c.fail(at+".name", fmt.Sprintf("%q is set twice", e.Name), "remove one of the two")
		}
		names[e.Name] = true
	}
	if strings.ContainsAny(s.User, ":/ \x00") {
		c.fail("spec.user", fmt.Sprintf("%q is not a user name", s.User), "leave it out, or name a user of this host")
	}
	given := map[string]bool{}
	for i, name := range s.Capabilities {
		at := fmt.Sprintf("spec.capabilities[%d]", i)
		switch {
		case !slices.Contains(v1alpha1.Capabilities, name):
			c.fail(at, fmt.Sprintf("%q cannot be given to a workload", name), "use "+strings.Join(v1alpha1.Capabilities, ", ")+"; others give the machine, which only `heddle up --privileged-workloads` does")
		case given[name]:
			c.fail(at, fmt.Sprintf("%q is there twice", name), "remove one of the two")
		}
		given[name] = true
	}
	c.workloadPorts(s.Ports)
	c.readiness(s.Readiness)
	for _, q := range []struct {
		name  string
		value *resource.Quantity
		least int64
		unit  string
	}{
		{"cpu", s.Resources.CPU, 10, "10m"}, {"memory", s.Resources.Memory, 4 << 20, "4Mi"},
	} {
		if q.value == nil {
			continue
		}
		amount := q.value.Value()
		if q.name == "cpu" {
			amount = q.value.MilliValue()
		}
		if amount < q.least {
			c.fail("spec.resources."+q.name, fmt.Sprintf("%s is too small", q.value), "use at least "+q.unit)
		}
	}
	switch s.Restart {
	case v1alpha1.RestartAlways, v1alpha1.RestartOnFailure, v1alpha1.RestartNever:
	default:
		c.fail("spec.restart", fmt.Sprintf("%q is not a restart policy", s.Restart),
			"use Always, OnFailure or Never")
	}
}

func (c *checker) workloadPorts(ports []v1alpha1.WorkloadPort) {
	names, numbers := map[string]bool{}, map[int32]bool{}
	for i, p := range ports {
		at := fmt.Sprintf("spec.ports[%d]", i)
		c.port(at+".port", int64(p.Port))
		if reservedPorts[p.Port] {
			c.fail(at+".port", fmt.Sprintf("%d is used by the sidecar", p.Port), "let the application use another port")
		}
		if p.Protocol != "TCP" {
			c.fail(at+".protocol", fmt.Sprintf("protocol %s is not supported", p.Protocol), "use TCP")
		}
		if p.Name != "" {
			if problems := validation.IsValidPortName(p.Name); len(problems) > 0 {
				c.fail(at+".name", fmt.Sprintf("%q is not a port name", p.Name), problems[0])
			}
			if names[p.Name] {
				c.fail(at+".name", fmt.Sprintf("%q is used twice", p.Name), "use another name")
			}
			names[p.Name] = true
		}
		if numbers[p.Port] && p.Port != 0 {
			c.fail(at+".port", fmt.Sprintf("%d is there twice", p.Port), "remove one of the two")
		}
		numbers[p.Port] = true
	}
}

// reservedPorts are the sidecar's, the same as Istio's.
var reservedPorts = map[int32]bool{15000: true, 15001: true, 15006: true, 15021: true, 15053: true, 15090: true}

func (c *checker) readiness(r *v1alpha1.Readiness) {
	if r == nil {
		return
	}
	probes := 0
	if r.TCP != nil {
		probes++
		c.port("spec.readiness.tcp.port", int64(r.TCP.Port))
	}
	if r.HTTP != nil {
		probes++
		c.port("spec.readiness.http.port", int64(r.HTTP.Port))
		if !strings.HasPrefix(r.HTTP.Path, "/") || strings.ContainsAny(r.HTTP.Path, " \r\n\x00") {
			c.fail("spec.readiness.http.path", fmt.Sprintf("%q is not a path", r.HTTP.Path), `begin it with "/"`)
		}
	}
	if r.GRPC != nil {
		probes++
		c.port("spec.readiness.grpc.port", int64(r.GRPC.Port))
	}
	if probes != 1 {
		c.fail("spec.readiness", fmt.Sprintf("has %d probes", probes), "set exactly one of tcp, http and grpc")
	}
	for _, f := range []struct {
		name  string
		value int32
		least int32
	}{
		{"initialDelaySeconds", r.InitialDelaySeconds, 0}, {"periodSeconds", r.PeriodSeconds, 1},
		{"timeoutSeconds", r.TimeoutSeconds, 1}, {"successThreshold", r.SuccessThreshold, 1},
		{"failureThreshold", r.FailureThreshold, 1},
	} {
		if f.value < f.least || f.value > 86400 {
			c.fail("spec.readiness."+f.name, fmt.Sprintf("%d is out of range", f.value),
				fmt.Sprintf("use %d to 86400", f.least))
		}
	}
}
