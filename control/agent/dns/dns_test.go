package dns

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"
)

func serve(t *testing.T, upstreams ...string) *Server {
	t.Helper()
	s, err := Listen("127.0.0.1:0", upstreams)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func table() *Table {
	return &Table{
		Domain:     "cluster.local",
		Services:   map[string][]netip.Addr{"pinnacle/cart": {netip.MustParseAddr("10.96.0.7")}},
		Aliases:    map[string]string{"pinnacle/outside": "example.test"},
		Namespaces: map[netip.Addr]string{netip.MustParseAddr("127.0.0.1"): "pinnacle"},
	}
}

func ask(t *testing.T, s *Server, network, name string, kind uint16) *dns.Msg {
	t.Helper()
	question := new(dns.Msg)
	question.SetQuestion(dns.Fqdn(name), kind)
	answer, _, err := (&dns.Client{Net: network}).Exchange(question, s.Address().String())
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestServiceNames(t *testing.T) {
	s := serve(t)
	s.Set(table())
	for _, network := range []string{"udp", "tcp"} {
		for _, name := range []string{"cart", "cart.pinnacle", "CART.pinnacle.svc", "cart.pinnacle.svc.cluster.local"} {
			answer := ask(t, s, network, name, dns.TypeA)
			if len(answer.Answer) != 1 || answer.Answer[0].(*dns.A).A.String() != "10.96.0.7" {
				t.Errorf("%s %s: %v", network, name, answer)
			}
		}
	}
	if answer := ask(t, s, "udp", "cart", dns.TypeAAAA); answer.Rcode != dns.RcodeSuccess || len(answer.Answer) != 0 {
		t.Errorf("AAAA: %v", answer)
	}
}

func TestUnknownClusterNamesAreDeniedNotForwarded(t *testing.T) {
	outside := serve(t)
	outside.Set(&Table{Domain: "test", Services: map[string][]netip.Addr{}})
	s := serve(t, outside.Address().String())
	s.Set(table())
	for _, name := range []string{"nobody", "nobody.pinnacle.svc", "nobody.pinnacle.svc.cluster.local", "cluster.local"} {
		if answer := ask(t, s, "udp", name, dns.TypeA); answer.Rcode != dns.RcodeNameError {
			t.Errorf("%s: %s", name, dns.RcodeToString[answer.Rcode])
		}
	}
	if n := outside.Counters.Answered.Load() + outside.Counters.Negative.Load() + outside.Counters.Failed.Load(); n != 0 {
		t.Errorf("%d questions left the cluster", n)
	}
}

func TestForeignNamesAreForwarded(t *testing.T) {
	outside := serve(t)
	outside.Set(&Table{Domain: "test", Services: map[string][]netip.Addr{"test/example": {netip.MustParseAddr("192.0.2.1")}}})
	s := serve(t, outside.Address().String())
	s.Set(table())
	for _, name := range []string{"example.test", "outside.pinnacle"} {
		answer := ask(t, s, "udp", name, dns.TypeA)
		last := len(answer.Answer) - 1
		if last < 0 || answer.Answer[last].(*dns.A).A.String() != "192.0.2.1" {
			t.Errorf("%s: %v", name, answer)
		}
	}
}

func TestNoResolver(t *testing.T) {
	s := serve(t)
	if answer := ask(t, s, "udp", "example.test", dns.TypeA); answer.Rcode != dns.RcodeServerFailure {
		t.Errorf("%v", answer)
	}
}

func TestOddQuestionsGetAnError(t *testing.T) {
	s := serve(t)
	question := new(dns.Msg)
	question.Id = 1
	question.Opcode = dns.OpcodeUpdate
	answer, _, err := new(dns.Client).Exchange(question, s.Address().String())
	if err != nil || answer.Rcode == dns.RcodeSuccess {
		t.Errorf("%v %v", answer, err)
	}
}
