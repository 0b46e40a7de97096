package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	istionetworking "istio.io/api/networking/v1alpha3"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// checkIngress asks for the first page of every host that a Gateway of the ingress serves by HTTP.
func checkIngress(ctx context.Context, c *client.Client, name string, replicas []client.Replica) []finding {
	gateways, err := c.List(ctx, objects.Gateway, "")
	if err != nil {
		return []finding{tried("ingress", "request", err, "", "")}
	}
	kubernetes, err := c.List(ctx, objects.KubernetesGateway, "")
	if err != nil {
		return []finding{tried("ingress", "request", err, "", "")}
	}
	var out []finding
	try := func(r client.Replica, o *objects.Object, server served, remedy string) {
		check := agent.Check{Subject: "ingress " + o.GetNamespace() + "/" + o.GetName(), Name: "request", How: agent.Tried, OK: true}
		answer, err := request(ctx, ingressAddress(name, r), server)
		switch {
		case errors.Is(err, errNotHTTP):
			return
		case err != nil:
			check.OK, check.Detail = false, err.Error()
			check.Remedy = remedy + " for this Gateway says where requests go; `heddle logs -n istio-system istio-ingressgateway` shows how they ended"
		default:
			check.Detail = answer
		}
		out = append(out, finding{Check: check})
	}
	for _, r := range replicas {
		if !r.Gateway {
			continue
		}
		if model.Selects(ingressLabels, r.Labels) {
			for _, o := range kubernetes.Items {
				for _, server := range routed(o) {
					try(r, o, server, "an HTTPRoute")
				}
			}
		}
		for _, o := range gateways.Items {
			g, ok := o.Resource.(*networkingv1.Gateway)
			if !ok || !model.Selects(g.Spec.Selector, r.Labels) {
				continue
			}
			for _, server := range g.Spec.Servers {
				try(r, o, servedBy(server), "a VirtualService")
			}
		}
	}
	return out
}

// ingressAddress is where this machine reaches a gateway: at its own address, or at the isolated cluster's.
func ingressAddress(name string, r client.Replica) string {
	c, err := cluster.New(name)
	if err != nil {
		return r.State.Address
	}
	if o, err := c.Options(); err == nil && o.Isolated && o.ExposeIngress && o.Advertise.IsValid() {
		return o.Advertise.String()
	}
	return r.State.Address
}

var errNotHTTP = errors.New("not HTTP")

// ingressLabels are those of the ingress gateway.
var ingressLabels = map[string]string{"istio": "ingressgateway"}

// served is a port of a gateway with a protocol in capitals, and a host that it serves.
type served struct {
	port           int
	protocol, host string
	// hosts are the routes' business, so that none may be for the one that is asked for.
	ofRoutes bool
}

// asked is a host name that a pattern covers; an empty one covers all.
func asked(pattern string) string {
	if pattern == "*" || pattern == "" {
		return "heddle-check"
	}
	return strings.Replace(pattern, "*", "heddle-check", 1)
}

func servedBy(server *istionetworking.Server) served {
	out := served{port: int(server.GetPort().GetNumber()), protocol: strings.ToUpper(server.GetPort().GetProtocol()), host: asked("")}
	for _, h := range server.GetHosts() {
		if _, after, ok := strings.Cut(h, "/"); ok {
			h = after
		}
		if h != "*" && h != "" {
			out.host = asked(h)
			break
		}
	}
	return out
}

// routed are the listeners of a Gateway of Gateway API that the ingress gateway serves and that have routes.
func routed(o *objects.Object) []served {
	g, ok := o.Resource.(*gatewayv1.Gateway)
	if !ok || !resolve.ServedByIngress(g, cluster.Domain) {
		return nil
	}
	var out []served
	for _, l := range g.Spec.Listeners {
		if !slices.ContainsFunc(o.Status.Listeners, func(s gatewayv1.ListenerStatus) bool { return s.Name == l.Name && s.AttachedRoutes > 0 }) {
			continue
		}
		one := served{port: int(l.Port), protocol: string(l.Protocol), host: asked(""), ofRoutes: true}
		if l.Hostname != nil {
			one.host = asked(string(*l.Hostname))
		}
		out = append(out, one)
	}
	return out
}

// request asks a gateway's server for / and returns what it answered.
func request(ctx context.Context, address string, server served) (string, error) {
	scheme, host := "http", server.host
	switch server.protocol {
	case "HTTP", "HTTP2", "GRPC":
	case "HTTPS":
		scheme = "https"
	default:
		return "", errNotHTTP
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	target := net.JoinHostPort(address, strconv.Itoa(server.port))
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+target+"/", nil)
	if err != nil {
		return "", err
	}
	r.Host = host
	transport := &http.Transport{DisableKeepAlives: true,
		// Whether the certificate suits the name is the client's business: here it matters that the gateway serves it.
		TLSClientConfig: &tls.Config{ServerName: host, InsecureSkipVerify: true}}
	began := time.Now()
	response, err := transport.RoundTrip(r)
	if err != nil {
		return "", fmt.Errorf("GET %s://%s/ (host %s): %w", scheme, target, host, err)
	}
	defer response.Body.Close()
	n, err := io.Copy(io.Discard, io.LimitReader(response.Body, 16<<20))
	if err != nil {
		return "", fmt.Errorf("GET %s://%s/ (host %s): %w", scheme, target, host, err)
	}
	answer := fmt.Sprintf("GET %s://%s/ (host %s): %s, %d bytes in %s", scheme, target, host, response.Status, n, time.Since(began).Round(time.Millisecond))
	if response.StatusCode >= 500 || response.StatusCode == http.StatusNotFound && !server.ofRoutes {
		return "", errors.New(answer)
	}
	return answer, nil
}
