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

	"github.com/spf13/cobra"
	istionetworking "istio.io/api/networking/v1alpha3"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

func (s *session) checkCommand() *cobra.Command {
	var output string
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "check", Short: "Prove that the cluster works: identity, mutual TLS, capture, names, configuration, a request end to end", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch output {
			case "", "json", "yaml":
			default:
				return usageError{fmt.Errorf("unknown output format %q: use json or yaml", output)}
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			deadline := time.Now().Add(wait)
			var checks []agent.Check
			for {
				checks = runChecks(cmd.Context(), c)
				if passed(checks) || time.Now().After(deadline) || cmd.Context().Err() != nil {
					break
				}
				timer := time.NewTimer(500 * time.Millisecond)
				select {
				case <-cmd.Context().Done():
				case <-timer.C:
				}
				timer.Stop()
			}
			if output != "" {
				if err := objects.EncodeDocument(s.out, output, checks); err != nil {
					return err
				}
			} else {
				s.printChecks(checks)
			}
			if !passed(checks) {
				return silentError{}
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	cmd.Flags().DurationVar(&wait, "wait", 0, "try again for so long until everything holds")
	return cmd
}

func passed(checks []agent.Check) bool {
	for _, c := range checks {
		if !c.OK {
			return false
		}
	}
	return true
}

func (s *session) printChecks(checks []agent.Check) {
	failed := 0
	for _, c := range checks {
		mark := "✓"
		if !c.OK {
			mark = "✗"
			failed++
		}
		fmt.Fprintf(s.out, "%s %-44s %s\n", mark, c.Subject+" "+c.Name, strings.ReplaceAll(c.Detail, "\n", "; "))
		if !c.OK && c.Remedy != "" {
			fmt.Fprintf(s.out, "  %-44s → %s\n", "", c.Remedy)
		}
	}
	if failed == 0 {
		fmt.Fprintf(s.out, "\nAll %d checks passed.\n", len(checks))
		return
	}
	fmt.Fprintf(s.out, "\n%d of %d checks failed.\n", failed, len(checks))
}

// runChecks tries everything. A check that cannot be made for want of another's success is left out.
func runChecks(ctx context.Context, c *client.Client) []agent.Check {
	var out []agent.Check
	add := func(subject, name string, err error, detail, remedy string) {
		check := agent.Check{Subject: subject, Name: name, OK: err == nil, Detail: detail}
		if err != nil {
			check.Detail, check.Remedy = err.Error(), remedy
		}
		out = append(out, check)
	}
	status, err := c.Status(ctx)
	add("controller", "answers", err, fmt.Sprintf("pid %d, revision %d, %d objects", status.PID, status.Revision, status.Objects), "`sudo heddle up` repairs the cluster")
	if err != nil {
		return out
	}
	var running agent.Status
	err = c.Do(ctx, http.MethodGet, "/heddle/v1/agent/status", nil, &running)
	add("agent", "answers", err, fmt.Sprintf("pid %d, %d replicas", running.PID, len(running.Replicas)), "`sudo heddle up` starts it again")
	modes, modesErr := peerModes(ctx, c)
	if modesErr != nil {
		add("controller", "lists", modesErr, "", "see `heddle logs --controller`")
	}
	if err == nil {
		var local []agent.Check
		if err := c.Do(ctx, http.MethodGet, "/heddle/v1/agent/checks", nil, &local); err != nil {
			add("agent", "checks", err, "", "see `heddle logs --agent`")
		}
		for _, check := range local {
			if check.Name == "plaintext" {
				check = judgePlaintext(check, running.Replicas, modes)
			}
			out = append(out, check)
		}
	}
	out = append(out, checkProxies(ctx, c)...)
	out = append(out, checkObjects(ctx, c)...)
	return append(out, checkIngress(ctx, c, running.Replicas)...)
}

// checkProxies says which proxies run what was sent to them.
func checkProxies(ctx context.Context, c *client.Client) []agent.Check {
	proxies, err := c.Proxies(ctx)
	if err != nil {
		return []agent.Check{{Subject: "proxies", Name: "synced", Detail: err.Error()}}
	}
	var out []agent.Check
	for _, p := range proxies {
		check := agent.Check{Subject: p.Namespace + "/" + p.Name, Name: "synced", OK: true, Detail: "runs revision " + strconv.FormatInt(p.Revision, 10)}
		var wrong []string
		for _, kind := range sortedKeys(p.Errors) {
			wrong = append(wrong, kind+": "+p.Errors[kind])
		}
		for _, kind := range proxyTypes {
			if p.Types[kind] == "STALE" {
				wrong = append(wrong, kind+" not acknowledged")
			}
		}
		if !p.Connected {
			wrong = append(wrong, "not connected to the controller")
		}
		if len(wrong) > 0 {
			check.OK, check.Detail = false, strings.Join(wrong, "; ")
			check.Remedy = fmt.Sprintf("`heddle logs -n %s %s --proxy` shows what the proxy says", p.Namespace, p.Name)
		}
		out = append(out, check)
	}
	return out
}

// checkObjects says which objects are not in force.
func checkObjects(ctx context.Context, c *client.Client) []agent.Check {
	var out []agent.Check
	total := 0
	for _, kind := range objects.Kinds {
		list, err := c.List(ctx, kind, "")
		if err != nil {
			return append(out, agent.Check{Subject: "objects", Name: "list", Detail: err.Error()})
		}
		for _, o := range list.Items {
			total++
			for _, condition := range o.Status.Conditions {
				if condition.Type != objects.ConditionProgrammed && condition.Status == metav1.ConditionFalse {
					out = append(out, agent.Check{Subject: client.Result{Key: o.Key()}.Name(), Name: condition.Type,
						Detail: condition.Message, Remedy: "written at " + o.Origin.String()})
				}
			}
		}
	}
	if len(out) == 0 {
		out = append(out, agent.Check{Subject: "objects", Name: "accepted", OK: true, Detail: fmt.Sprintf("%d, all that they name exists", total)})
	}
	return out
}

// peerModes reads the rules for mutual TLS.
func peerModes(ctx context.Context, c *client.Client) ([]*objects.Object, error) {
	list, err := c.List(ctx, objects.PeerAuthentication, "")
	return list.Items, err
}

// judgePlaintext says whether accepting plaintext is what the rules ask for.
func judgePlaintext(check agent.Check, replicas []client.Replica, modes []*objects.Object) agent.Check {
	if check.OK {
		return check
	}
	for _, r := range replicas {
		if r.Namespace+"/"+r.State.Name == check.Subject {
			if mode := effectiveMode(r, check.Port, modes); mode != model.MTLSStrict {
				check.OK, check.Remedy = true, ""
				check.Detail = fmt.Sprintf("accepted, as mode %s allows", mode)
			}
		}
	}
	return check
}

// checkIngress asks for the first page of every host that a Gateway of the ingress serves by HTTP.
func checkIngress(ctx context.Context, c *client.Client, replicas []client.Replica) []agent.Check {
	gateways, err := c.List(ctx, objects.Gateway, "")
	if err != nil {
		return []agent.Check{{Subject: "ingress", Name: "request", Detail: err.Error()}}
	}
	var out []agent.Check
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
				check := agent.Check{Subject: "ingress " + o.GetNamespace() + "/" + o.GetName(), Name: "request", OK: true}
				answer, err := request(ctx, r.State.Address, server)
				switch {
				case errors.Is(err, errNotHTTP):
					continue
				case err != nil:
					check.OK, check.Detail = false, err.Error()
					check.Remedy = "a VirtualService for this Gateway says where requests go; `heddle logs -n istio-system istio-ingressgateway` shows how they ended"
				default:
					check.Detail = answer
				}
				out = append(out, check)
			}
		}
	}
	return out
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
