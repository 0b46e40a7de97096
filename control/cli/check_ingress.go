package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	istionetworking "istio.io/api/networking/v1alpha3"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"

	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// checkIngress asks for the first page of every host that a Gateway of the ingress serves by HTTP.
func checkIngress(ctx context.Context, c *client.Client, name string, replicas []client.Replica) []finding {
	gateways, err := c.List(ctx, objects.Gateway, "")
	if err != nil {
		return []finding{tried("ingress", "request", err, "", "")}
	}
	var out []finding
	for _, r := range replicas {
		if !r.Gateway {
			continue
		}
		for _, o := range gateways.Items {
			g, ok := o.Resource.(*networkingv1.Gateway)
			if !ok || !model.Selects(g.Spec.Selector, r.Labels) {
				continue
			}
			for _, server := range g.Spec.Servers {
				check := agent.Check{Subject: "ingress " + o.GetNamespace() + "/" + o.GetName(), Name: "request", How: agent.Tried, OK: true}
				answer, err := request(ctx, ingressAddress(name, r), server)
				switch {
				case errors.Is(err, errNotHTTP):
					continue
				case err != nil:
					check.OK, check.Detail = false, err.Error()
					check.Remedy = "a VirtualService for this Gateway says where requests go; `heddle logs -n istio-system istio-ingressgateway` shows how they ended"
				default:
					check.Detail = answer
				}
				out = append(out, finding{Check: check})
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

// request asks a gateway's server for / and returns what it answered.
func request(ctx context.Context, address string, server *istionetworking.Server) (string, error) {
	scheme := "http"
	switch strings.ToUpper(server.GetPort().GetProtocol()) {
	case "HTTP", "HTTP2", "GRPC":
	case "HTTPS":
		scheme = "https"
	default:
		return "", errNotHTTP
	}
	host := "heddle-check"
	for _, h := range server.GetHosts() {
		if _, after, ok := strings.Cut(h, "/"); ok {
			h = after
		}
		if h != "*" && h != "" {
			host = strings.Replace(h, "*", "heddle-check", 1)
			break
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	target := net.JoinHostPort(address, strconv.Itoa(int(server.GetPort().GetNumber())))
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
	if response.StatusCode >= 500 || response.StatusCode == http.StatusNotFound {
		return "", errors.New(answer)
	}
	return answer, nil
}
