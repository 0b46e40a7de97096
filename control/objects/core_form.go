package objects

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

func defaultService(s *corev1.Service) {
	if s.Spec.Type == "" {
		s.Spec.Type = corev1.ServiceTypeClusterIP
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		if p.TargetPort == (intstr.IntOrString{}) {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
}

func (c *checker) service(s *corev1.Service) {
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP:
	default:
		c.fail("spec.type", fmt.Sprintf("services of type %s are not supported", s.Spec.Type),
			"use ClusterIP, and a Gateway for what comes from outside")
	}
	switch ip := s.Spec.ClusterIP; ip {
	case "":
	case corev1.ClusterIPNone:
		c.fail("spec.clusterIP", "headless services are not supported",
			"leave clusterIP out; the service then gets a virtual address")
	default:
		if a, err := netip.ParseAddr(ip); err != nil || a.Zone() != "" || a.Is4In6() {
			c.fail("spec.clusterIP", fmt.Sprintf("%q is not an IP address", ip), "leave it out to get one")
		}
	}
	if a := s.Spec.SessionAffinity; a != "" && a != corev1.ServiceAffinityNone {
		c.fail("spec.sessionAffinity", "affinity of clients to endpoints is not supported", "use None")
	}
	if len(s.Spec.Selector) == 0 {
		c.fail("spec.selector", "missing", "give the labels of the workloads that serve it")
	}
	c.labels("spec.selector", s.Spec.Selector)
	if len(s.Spec.Ports) == 0 {
		c.fail("spec.ports", "missing", "give at least one port")
	}
	names, numbers := map[string]int{}, map[int32]int{}
	for i, p := range s.Spec.Ports {
		at := fmt.Sprintf("spec.ports[%d]", i)
		c.port(at+".port", int64(p.Port))
		if p.Protocol != corev1.ProtocolTCP {
			c.fail(at+".protocol", fmt.Sprintf("protocol %s is not supported", p.Protocol), "use TCP")
		}
		switch {
		case p.Name == "" && len(s.Spec.Ports) > 1:
			c.fail(at+".name", "missing", "name every port of a service that has several")
		case p.Name != "":
			c.dnsLabel(at+".name", p.Name)
			if j, dup := names[p.Name]; dup {
				c.fail(at+".name", fmt.Sprintf("%q is also the name of ports[%d]", p.Name, j), "use another name")
			}
			names[p.Name] = i
		}
		if j, dup := numbers[p.Port]; dup {
			c.fail(at+".port", fmt.Sprintf("%d is also the port of ports[%d]", p.Port, j), "use another port")
		}
		numbers[p.Port] = i
		if p.TargetPort.Type == intstr.Int {
			// The same as the port by default: one message is enough.
			if p.TargetPort.IntVal != p.Port {
				c.port(at+".targetPort", int64(p.TargetPort.IntVal))
			}
		} else if len(validation.IsValidPortName(p.TargetPort.StrVal)) > 0 {
			c.fail(at+".targetPort", fmt.Sprintf("%q is not a port name", p.TargetPort.StrVal),
				"use a number, or the name of a port of the workload")
		}
		if p.AppProtocol != nil {
			if _, known := appProtocols[strings.ToLower(*p.AppProtocol)]; !known {
				c.fail(at+".appProtocol", fmt.Sprintf("%q is not known", *p.AppProtocol),
					"use one of "+strings.Join(slices.Sorted(maps.Keys(appProtocols)), ", "))
			}
		}
	}
}

// appProtocols are the values accepted in appProtocol: Istio's and Kubernetes' own (KEP-3726).
var appProtocols = map[string]bool{
	"http": true, "http2": true, "grpc": true, "grpc-web": true, "tcp": true, "tls": true, "https": true,
	"redis": true, "mongo": true, "mysql": true, "kubernetes.io/h2c": true, "kubernetes.io/ws": true,
}

func defaultSecret(s *corev1.Secret) {
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
	// stringData is for writing only: it ends up in data, as in Kubernetes.
	if len(s.StringData) > 0 {
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		for name, value := range s.StringData {
			s.Data[name] = []byte(value)
		}
		s.StringData = nil
	}
}

// maxSecret is Kubernetes' bound on a Secret's size.
const maxSecret = 1 << 20

func (c *checker) secret(s *corev1.Secret) {
	size := 0
	for _, name := range slices.Sorted(maps.Keys(s.Data)) {
		size += len(s.Data[name])
		if len(validation.IsConfigMapKey(name)) > 0 {
			c.fail(joinKey("data", name), "is not a valid key", "use letters, digits, '-', '_' and '.'")
		}
	}
	if size > maxSecret {
		c.fail("data", fmt.Sprintf("is larger than %d bytes", maxSecret), "keep large files elsewhere")
	}
	if s.Type != corev1.SecretTypeTLS {
		return
	}
	cert, key := s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]
	for _, f := range []struct {
		name string
		data []byte
	}{{"tls.crt", cert}, {"tls.key", key}} {
		if len(f.data) == 0 {
			c.fail(joinKey("data", f.name), "missing", "a secret of type kubernetes.io/tls needs tls.crt and tls.key")
		}
	}
	if len(cert) > 0 && len(key) > 0 {
		if _, err := tls.X509KeyPair(cert, key); err != nil {
			c.fail(joinKey("data", "tls.crt"), "certificate and key cannot be used: "+err.Error(),
				"give a PEM certificate chain and its own PEM key")
		}
	}
}
