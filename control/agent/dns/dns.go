// Package dns answers the names of services to workloads. Names of the cluster's domain are answered from a table and
// never leave the machine; others are forwarded to the machine's own resolvers.
package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// Bounds: each forwarded question holds a socket and a goroutine while it waits.
const (
	maxForwards    = 256
	forwardTimeout = 2 * time.Second
	// ttl is short, because services come and go; clients ask again over loopback-fast paths.
	ttl = 5
)

// Table is what the server knows. It is immutable once given to [Server.Set].
type Table struct {
	// Domain is the cluster's DNS domain, for example "cluster.local".
	Domain string
	// Services maps namespace/name to addresses: the virtual address, or the endpoints of a headless service.
	Services map[string][]netip.Addr
	// Aliases maps namespace/name to the external name of services of type ExternalName.
	Aliases map[string]string
	// Namespaces maps a workload's address to its namespace, for clients that do not use the search list.
	Namespaces map[netip.Addr]string
}

// Counters count answers since the start.
type Counters struct {
	Answered, Negative, Forwarded, Refused, Failed atomic.Uint64
}

// Server answers on one address over UDP and TCP.
type Server struct {
	table     atomic.Pointer[Table]
	upstreams []string
	forwards  chan struct{}
	servers   []*dns.Server
	address   netip.AddrPort
	Counters  Counters
}

// Listen opens the sockets and serves until Close. upstreams are host:port of the resolvers to forward to; without any,
// foreign names get SERVFAIL.
func Listen(address string, upstreams []string) (*Server, error) {
	packets, err := net.ListenPacket("udp4", address)
	if err != nil {
		return nil, fmt.Errorf("serve DNS: %w", err)
	}
	bound, ok := packets.LocalAddr().(*net.UDPAddr)
	if !ok {
		packets.Close()
		return nil, errors.New("serve DNS: not a UDP address")
	}
	streams, err := net.Listen("tcp4", bound.AddrPort().String())
	if err != nil {
		packets.Close()
		return nil, fmt.Errorf("serve DNS: %w", err)
	}
	s := &Server{upstreams: upstreams, forwards: make(chan struct{}, maxForwards), address: bound.AddrPort()}
	s.table.Store(&Table{Domain: "cluster.local"})
	handler := dns.HandlerFunc(s.handle)
	s.servers = []*dns.Server{
		{PacketConn: packets, Handler: handler, UDPSize: 4096},
		{Listener: streams, Handler: handler, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, MaxTCPQueries: 128},
	}
	for _, server := range s.servers {
		// Ends with an error only when Close shut its socket.
		go func() { _ = server.ActivateAndServe() }()
	}
	return s, nil
}

// Address is where the server listens.
func (s *Server) Address() netip.AddrPort { return s.address }

// Set replaces the table.
func (s *Server) Set(t *Table) { s.table.Store(t) }

// Close stops serving.
func (s *Server) Close() error {
	var errs []error
	for _, server := range s.servers {
		// Closing what has not started yet is no error.
		if server.PacketConn != nil {
			errs = append(errs, server.PacketConn.Close())
		}
		if server.Listener != nil {
			errs = append(errs, server.Listener.Close())
		}
	}
	return errors.Join(errs...)
}

func (s *Server) handle(w dns.ResponseWriter, question *dns.Msg) {
	answer := new(dns.Msg)
	answer.SetReply(question)
	if question.Opcode != dns.OpcodeQuery || len(question.Question) != 1 {
		answer.Rcode = dns.RcodeNotImplemented
		s.Counters.Refused.Add(1)
		s.write(w, question, answer)
		return
	}
	q := question.Question[0]
	name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	switch known, addresses, alias := s.table.Load().find(name, source(w)); {
	case known:
		answer.Authoritative = true
		answer.RecursionAvailable = true
		switch {
		case alias != "":
			s.resolveAlias(answer, q, alias)
		case q.Qtype == dns.TypeA || q.Qtype == dns.TypeANY:
			for _, a := range addresses {
				answer.Answer = append(answer.Answer, &dns.A{Hdr: header(q.Name, dns.TypeA), A: a.AsSlice()})
			}
		}
		s.Counters.Answered.Add(1)
	case s.table.Load().owns(name):
		answer.Authoritative = true
		answer.RecursionAvailable = true
		answer.Rcode = dns.RcodeNameError
		answer.Ns = []dns.RR{&dns.SOA{Hdr: header(s.table.Load().Domain+".", dns.TypeSOA), Ns: "ns." + s.table.Load().Domain + ".",
			Mbox: "hostmaster." + s.table.Load().Domain + ".", Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl}}
		s.Counters.Negative.Add(1)
	default:
		if forwarded := s.forward(question); forwarded != nil {
			forwarded.Id = question.Id
			answer = forwarded
			s.Counters.Forwarded.Add(1)
		} else {
			answer.Rcode = dns.RcodeServerFailure
			s.Counters.Failed.Add(1)
		}
	}
	s.write(w, question, answer)
}

// resolveAlias follows an external name as far as the resolvers know it.
func (s *Server) resolveAlias(answer *dns.Msg, q dns.Question, alias string) {
	target := dns.Fqdn(alias)
	answer.Answer = append(answer.Answer, &dns.CNAME{Hdr: header(q.Name, dns.TypeCNAME), Target: target})
	if q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA {
		return
	}
	further := new(dns.Msg)
	further.SetQuestion(target, q.Qtype)
	if known, addresses, _ := s.table.Load().find(strings.TrimSuffix(target, "."), netip.Addr{}); known {
		if q.Qtype == dns.TypeA {
			for _, a := range addresses {
				answer.Answer = append(answer.Answer, &dns.A{Hdr: header(target, dns.TypeA), A: a.AsSlice()})
			}
		}
	} else if forwarded := s.forward(further); forwarded != nil {
		answer.Answer = append(answer.Answer, forwarded.Answer...)
	}
}

// write sends the answer, cut to what the client's transport takes (RFC 1035 §4.2.1, RFC 6891 §6.2.3).
func (s *Server) write(w dns.ResponseWriter, question, answer *dns.Msg) {
	if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
		size := dns.MinMsgSize
		if option := question.IsEdns0(); option != nil {
			size = max(size, min(int(option.UDPSize()), 4096))
		}
		answer.Truncate(size)
	}
	if err := w.WriteMsg(answer); err != nil {
		s.Counters.Failed.Add(1)
	}
}

// forward asks the machine's resolvers in turn. It returns nil when none answers or too many questions wait already.
func (s *Server) forward(question *dns.Msg) *dns.Msg {
	select {
	case s.forwards <- struct{}{}:
		defer func() { <-s.forwards }()
	default:
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), forwardTimeout)
	defer cancel()
	for _, upstream := range s.upstreams {
		client := &dns.Client{Net: "udp", UDPSize: 4096, Timeout: forwardTimeout / time.Duration(len(s.upstreams))}
		answer, _, err := client.ExchangeContext(ctx, question.Copy(), upstream)
		if err == nil && answer.Truncated {
			client.Net = "tcp"
			answer, _, err = client.ExchangeContext(ctx, question.Copy(), upstream)
		}
		if err == nil {
			return answer
		}
	}
	return nil
}

// find answers a lower-case name without the final dot: service, service.namespace, service.namespace.svc and
// service.namespace.svc.<domain>.
func (t *Table) find(name string, source netip.Addr) (known bool, addresses []netip.Addr, alias string) {
	name = strings.TrimSuffix(name, ".svc."+t.Domain)
	name = strings.TrimSuffix(name, ".svc")
	service, namespace, qualified := strings.Cut(name, ".")
	if !qualified {
		namespace = t.Namespaces[source]
	}
	if service == "" || namespace == "" || strings.Contains(namespace, ".") {
		return false, nil, ""
	}
	key := namespace + "/" + service
	if alias, ok := t.Aliases[key]; ok {
		return true, nil, alias
	}
	addresses, known = t.Services[key]
	return known, addresses, ""
}

// owns says whether a name is ours to deny: the cluster's domain, ".svc", and names of one label, which no resolver
// outside can know.
func (t *Table) owns(name string) bool {
	return name == t.Domain || strings.HasSuffix(name, "."+t.Domain) || strings.HasSuffix(name, ".svc") ||
		(!strings.Contains(name, ".") && name != "")
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

func source(w dns.ResponseWriter) netip.Addr {
	switch a := w.RemoteAddr().(type) {
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// Resolvers reads the machine's resolvers from a file in the form of /etc/resolv.conf, as host:port.
func Resolvers(path string) ([]string, error) {
	config, err := dns.ClientConfigFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("read resolvers: %w", err)
	}
	var upstreams []string
	for _, server := range config.Servers {
		upstreams = append(upstreams, net.JoinHostPort(server, config.Port))
	}
	return upstreams, nil
}

// ResolvConf is the /etc/resolv.conf of a workload.
func ResolvConf(server netip.Addr, namespace, domain string) string {
	return fmt.Sprintf("# Written by Heddle.\nnameserver %s\nsearch %s.svc.%s svc.%s %s\noptions ndots:5 timeout:2 attempts:3\n",
		server, namespace, domain, domain, domain)
}
