package cluster

import (
	"bytes"
	"embed"
	"fmt"
	"text/template"

	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/control/objects"
)

// Way is what is between a client and its server.
type Way struct {
	// Name is the namespace's.
	Name string
	// Direct leaves all traffic out of capture: nothing is between. What follows has no meaning then.
	Direct bool
	// Envoy has stock Envoys for sidecars.
	Envoy bool
	// MutualTLS between the sidecars; without it they speak plaintext.
	MutualTLS bool
	// EBPF captures, in place of rules of the packet filter.
	EBPF bool
	// Bypass of TCP: send or both; empty is off.
	Bypass string
	// NoTelemetry has heddle-proxy count none of Istio's metrics, exchange no metadata and write no access log.
	NoTelemetry bool
}

// Ports of a server's Service and of the server.
const (
	servicePort = 80
	serverPort  = 8080
)

// responseSize is how much a server answers, in bytes.
const responseSize = 1000

//go:embed way.yaml
var files embed.FS

var manifests = template.Must(template.New("way.yaml").ParseFS(files, "way.yaml"))

// Annotations of both workloads.
func (w Way) annotations(envoy string) map[string]string {
	a := map[string]string{objects.AnnotationTCPBypass: objects.BypassOff}
	if w.Bypass != "" {
		a[objects.AnnotationTCPBypass] = w.Bypass
	}
	// Programs of eBPF that leave everything alone are not in the way of a packet; rules would have the kernel track connections.
	if w.EBPF || w.Direct {
		a[objects.AnnotationCapture] = "ebpf"
	}
	if w.Direct {
		a["traffic.sidecar.istio.io/includeOutboundIPRanges"] = ""
		a["traffic.sidecar.istio.io/includeInboundPorts"] = ""
	}
	if w.Envoy {
		a["heddle.io/proxy-path"] = envoy
	}
	return a
}

// Manifests of a way: its namespace, a client that does nothing, so that a load generator can take its place, a server, the server's
// Service, and how sidecars speak to each other. envoy is the path of a stock Envoy.
func (w Way) manifests(envoy string) ([]byte, error) {
	// Its home is the only directory that an application may write to.
	config, err := peers.BackendConfig("/tmp", fmt.Sprintf("0.0.0.0:%d", serverPort), responseSize)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = manifests.Execute(&out, map[string]any{"Way": w, "Annotations": w.annotations(envoy), "ServerConfig": string(config),
		"ServicePort": servicePort, "ServerPort": serverPort})
	return out.Bytes(), err
}
