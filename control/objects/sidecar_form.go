package objects

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
)

const allPorts = "remove it; all ports of the hosts are reached"

// sidecarTreatments are what becomes of the fields of Sidecar, Istio's kind for what a workload's proxy gets, as a client and as a server.
var sidecarTreatments = map[string]fields{
	"istio.networking.v1alpha3.Sidecar": {
		translated: []string{"workloadSelector", "ingress", "egress", "outboundTrafficPolicy"},
		refused:    map[string]string{"inboundConnectionPool": later + "bounds on inbound connections by Sidecar"},
	},
	"istio.networking.v1alpha3.IstioIngressListener": {
		translated: []string{"port", "defaultEndpoint", "captureMode"},
		refused: map[string]string{
			"bind":           "remove it; what is captured is for the workload's own address",
			"tls":            later + "TLS of its own on a sidecar's port",
			"connectionPool": later + "bounds on inbound connections by Sidecar",
		},
	},
	"istio.networking.v1alpha3.IstioEgressListener": {
		translated: []string{"hosts", "captureMode"},
		refused:    map[string]string{"port": allPorts, "bind": allPorts},
	},
	"istio.networking.v1alpha3.SidecarPort": {
		translated: []string{"number", "protocol", "name"},
		ignored:    map[string]string{"targetPort": "deprecated and unused in Istio as well"},
	},
	"istio.networking.v1alpha3.OutboundTrafficPolicy": {
		translated: []string{"mode"},
		refused:    map[string]string{"egressProxy": later + "proxy for unknown destinations"},
	},
}

func (c *checker) sidecar(s *networkingv1.Sidecar) {
	if s.Spec.WorkloadSelector != nil {
		c.labels("spec.workloadSelector.labels", s.Spec.WorkloadSelector.Labels)
	}
	ports := map[uint32]int{}
	for i, l := range s.Spec.Ingress {
		at := fmt.Sprintf("spec.ingress[%d]", i)
		if s.Spec.WorkloadSelector == nil {
			c.fail(at, "cannot be without a workloadSelector: workloads of a namespace have different ports", "give spec.workloadSelector")
		}
		c.capture(at, l.GetCaptureMode())
		if l.GetPort() == nil {
			c.fail(at+".port", "missing", "give number, name and protocol")
			continue
		}
		c.port(at+".port.number", int64(l.Port.Number))
		if j, taken := ports[l.Port.Number]; taken {
			c.fail(at+".port.number", fmt.Sprintf("%d is also the port of ingress[%d]", l.Port.Number, j), "remove one of the two")
		}
		ports[l.Port.Number] = i
		if _, known := entryProtocols[strings.ToUpper(l.Port.Protocol)]; !known {
			c.fail(at+".port.protocol", fmt.Sprintf("protocol %q is not supported", l.Port.Protocol), "use HTTP, HTTP2, GRPC, HTTPS, TLS or TCP")
		}
		c.defaultEndpoint(at+".defaultEndpoint", l.DefaultEndpoint)
	}
	for i, l := range s.Spec.Egress {
		at := fmt.Sprintf("spec.egress[%d]", i)
		c.capture(at, l.GetCaptureMode())
		if len(l.GetHosts()) == 0 {
			c.fail(at+".hosts", "missing", `give hosts as namespace/name, for example "./*"`)
		}
		for j, h := range l.GetHosts() {
			path := fmt.Sprintf("%s.hosts[%d]", at, j)
			ns, name, ok := strings.Cut(h, "/")
			if !ok {
				c.fail(path, fmt.Sprintf("%q has no namespace", h), `write namespace/name, for example "*/`+h+`"`)
				continue
			}
			if !slices.Contains([]string{"*", ".", "~"}, ns) {
				c.dnsLabel(path, ns)
			}
			c.host(path, name)
		}
	}
}

func (c *checker) capture(at string, mode networking.CaptureMode) {
	if mode == networking.CaptureMode_NONE {
		c.fail(at+".captureMode", "NONE is not supported: all connections of a workload are captured", "use DEFAULT or IPTABLES")
	}
}

// SidecarEndpoint reads where a Sidecar's ingress hands connections on: the port of the workload's loopback; without one, to
// where they were going, which is port 0.
func SidecarEndpoint(text string) (port uint16, ok bool) {
	if text == "" {
		return 0, true
	}
	at, err := netip.ParseAddrPort(text)
	return at.Port(), err == nil && at.Port() != 0 && at.Addr().IsLoopback()
}

func (c *checker) defaultEndpoint(path, text string) {
	switch _, ok := SidecarEndpoint(text); {
	case ok:
	case strings.HasPrefix(text, "unix:"):
		c.fail(path, "Unix sockets are not supported", "use 127.0.0.1:PORT")
	default:
		c.fail(path, fmt.Sprintf("%q is not a port of the workload's loopback", text), "use 127.0.0.1:PORT")
	}
}
