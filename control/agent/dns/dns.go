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
	"syscall"
	"time"

	"github.com/miekg/dns"

	"heddle.io/heddle/control/connlimit"
)

// Bounds: each forwarded question holds a socket and a goroutine while it waits, each connection a descriptor. No workload
// can take all of them.
const (
	maxForwards         = 256
	maxForwardsOfOne    = 64
	maxConnections      = 1024
	maxConnectionsOfOne = 32
	forwardTimeout      = 2 * time.Second
	// ttl is short, because services come and go; clients ask again over loopback-fast paths.
	ttl = 5
)

// Counters count answers since the start.
type Counters struct {
	Answered, Negative, Forwarded, Refused, Failed atomic.Uint64
}

// Server answers on one address over UDP and TCP.
type Server struct {
	table     atomic.Pointer[index]
	upstreams []string
	forwards  *places
	streams   *connlimit.Listener
	servers   []*dns.Server
	address   netip.AddrPort
	Counters  Counters
}

// Listen opens the sockets and serves until Close. upstreams are host:port of the resolvers to forward to; without any,
// foreign names get SERVFAIL.
func Listen(address string, upstreams []string) (*Server, error) {
	packets, streams, err := sockets(address)
	if err != nil {
		return nil, fmt.Errorf("serve DNS: %w", err)
	}
	bound, ok := packets.LocalAddr().(*net.UDPAddr)
	if !ok {
		packets.Close()
		streams.Close()
		return nil, errors.New("serve DNS: not a UDP address")
	}
	s := &Server{upstreams: upstreams, forwards: newPlaces(maxForwards, maxForwardsOfOne), address: bound.AddrPort(),
		streams: connlimit.New(streams, maxConnectionsOfOne, maxConnections, nil)}
	s.Set(Table{})
	handler := dns.HandlerFunc(s.handle)
	s.servers = []*dns.Server{
		{PacketConn: packets, Handler: handler, UDPSize: 4096},
		{Listener: s.streams, Handler: handler, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, MaxTCPQueries: 128},
	}
	for _, server := range s.servers {
		// Ends with an error only when Close shut its socket.
		go func() { _ = server.ActivateAndServe() }()
	}
	return s, nil
}

// sockets opens both on one port. Where the kernel chooses it (port 0), one that is free for UDP may be taken for TCP;
// then another is tried.
func sockets(address string) (net.PacketConn, net.Listener, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, nil, err
	}
	for attempt := 1; ; attempt++ {
		packets, err := net.ListenPacket("udp", address)
		if err != nil {
			return nil, nil, err
		}
		streams, err := net.Listen("tcp", packets.LocalAddr().String())
		if err == nil {
			return packets, streams, nil
		}
		packets.Close()
		if port != "0" || attempt == maxPorts || !errors.Is(err, syscall.EADDRINUSE) {
			return nil, nil, err
		}
	}
}

// maxPorts bounds the attempts to find a port that is free for both.
const maxPorts = 16

// Address is where the server listens.
func (s *Server) Address() netip.AddrPort { return s.address }

// Set replaces the table.
func (s *Server) Set(t Table) { s.table.Store(newIndex(t)) }

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
	table, asker := s.table.Load(), source(w)
	switch host := table.find(name, asker); {
	case host != nil:
		answer.Authoritative = true
		answer.RecursionAvailable = true
		if host.Alias != "" {
			s.resolveAlias(table, asker, answer, q, host.Alias)
		} else {
			answer.Answer = records(q.Name, q.Qtype, host.Addresses)
		}
		s.Counters.Answered.Add(1)
	case table.owns(name):
		answer.Authoritative = true
		answer.RecursionAvailable = true
		answer.Rcode = dns.RcodeNameError
		answer.Ns = []dns.RR{&dns.SOA{Hdr: header(table.domain+".", dns.TypeSOA), Ns: "ns." + table.domain + ".",
			Mbox: "hostmaster." + table.domain + ".", Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl}}
		s.Counters.Negative.Add(1)
	default:
		if forwarded := s.forward(asker, question); forwarded != nil {
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

// records are the addresses of the type that was asked for: A for IPv4, AAAA for IPv6.
func records(name string, kind uint16, addresses []netip.Addr) []dns.RR {
	var out []dns.RR
	for _, a := range addresses {
		switch {
		case a.Is4() && (kind == dns.TypeA || kind == dns.TypeANY):
			out = append(out, &dns.A{Hdr: header(name, dns.TypeA), A: a.AsSlice()})
		case a.Is6() && (kind == dns.TypeAAAA || kind == dns.TypeANY):
			out = append(out, &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: a.AsSlice()})
		}
	}
	return out
}

// resolveAlias follows an external name as far as the resolvers know it.
func (s *Server) resolveAlias(table *index, asker netip.Addr, answer *dns.Msg, q dns.Question, alias string) {
	target := dns.Fqdn(alias)
	answer.Answer = append(answer.Answer, &dns.CNAME{Hdr: header(q.Name, dns.TypeCNAME), Target: target})
	if q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA {
		return
	}
	further := new(dns.Msg)
	further.SetQuestion(target, q.Qtype)
	if host := table.find(strings.TrimSuffix(target, "."), asker); host != nil {
		answer.Answer = append(answer.Answer, records(target, q.Qtype, host.Addresses)...)
	} else if forwarded := s.forward(asker, further); forwarded != nil {
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

// forward asks the machine's resolvers in turn. It returns nil when none answers or too many questions wait already, of who
// asks or of all.
func (s *Server) forward(asker netip.Addr, question *dns.Msg) *dns.Msg {
	if !s.forwards.take(asker) {
		return nil
	}
	defer s.forwards.leave(asker)
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
