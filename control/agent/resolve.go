package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/server/client"
)

// resolveTime bounds a question that is asked for a check.
const resolveTime = 2 * time.Second

// handleResolve asks for a name as an application of the replica would, and tells the addresses.
func (a *Agent) handleResolve(w http.ResponseWriter, r *http.Request) {
	found := a.replicaOf(w, r)
	if found == nil {
		return
	}
	name := r.URL.Query().Get("name")
	if _, ok := dns.IsDomainName(name); !ok || name == "" {
		refuse(w, &client.Problem{Status: http.StatusBadRequest, What: "this is no DNS name", Where: name, Remedy: "give it as ?name="})
		return
	}
	addresses, err := found.resolve(r.Context(), name)
	if err != nil {
		refuse(w, &client.Problem{Status: http.StatusBadGateway, What: "the name does not resolve", Where: name, Why: err.Error()})
		return
	}
	answer(w, addresses)
}

// resolve asks the cluster's DNS from inside the replica's network. The agent is none of the cluster's programs: where those redirect
// what applications ask, it asks where they would come to.
func (r *replica) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	port := uint16(53)
	if r.capturedByPrograms() {
		port = cluster.PortDNS
	}
	connection, err := network.Dial(ctx, r.netns, "udp", netip.AddrPortFrom(r.agent.gateway(), port).String())
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	kind := dns.TypeA
	if r.agent.options.Family == cluster.IPv6 {
		kind = dns.TypeAAAA
	}
	return ask(ctx, connection, name, kind)
}

// refusedName is an answer without addresses: the response code (RFC 1035 §4.1.1).
type refusedName int

func (r refusedName) Error() string { return "DNS answers " + dns.RcodeToString[int(r)] }

// ask sends one question and reads its answer.
func ask(ctx context.Context, connection net.Conn, name string, kind uint16) ([]netip.Addr, error) {
	if deadline, ok := ctx.Deadline(); ok {
		if err := connection.SetDeadline(deadline); err != nil {
			return nil, fmt.Errorf("bound the question: %w", err)
		}
	}
	question := new(dns.Msg)
	question.SetQuestion(dns.Fqdn(name), kind)
	c := &dns.Conn{Conn: connection}
	if err := c.WriteMsg(question); err != nil {
		return nil, fmt.Errorf("ask DNS: %w", err)
	}
	reply, err := c.ReadMsg()
	if err != nil {
		return nil, fmt.Errorf("no answer from DNS: %w", err)
	}
	if reply.Id != question.Id {
		return nil, errors.New("DNS answered another question")
	}
	if reply.Rcode != dns.RcodeSuccess {
		return nil, refusedName(reply.Rcode)
	}
	addresses := []netip.Addr{}
	for _, record := range reply.Answer {
		var ip net.IP
		switch record := record.(type) {
		case *dns.A:
			ip = record.A
		case *dns.AAAA:
			ip = record.AAAA
		default:
			continue
		}
		if address, ok := netip.AddrFromSlice(ip); ok {
			addresses = append(addresses, address.Unmap())
		}
	}
	return addresses, nil
}
