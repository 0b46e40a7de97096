package dns

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"heddle.io/heddle/control/server/client"
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

// table has a service of either family, one with both, one that only its namespace sees, and an alias.
func table() Table {
	addresses := func(all ...string) []netip.Addr {
		var out []netip.Addr
		for _, a := range all {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	return Table{
		Names: client.Names{Domain: "cluster.local", Hosts: []client.NamedHost{
			{Name: "ad.acme.demo", Addresses: addresses("240.240.0.1"), Limited: true, Namespaces: []string{"pinnacle", "summit"}},
			{Name: "ad.pinnacle.svc.cluster.local", Addresses: addresses("240.240.0.1"), Limited: true, Namespaces: []string{"pinnacle"}},
			{Name: "both.pinnacle.svc.cluster.local", Addresses: addresses("10.96.0.9", "fd00:10:96::9")},
			{Name: "cart.pinnacle.svc.cluster.local", Addresses: addresses("10.96.0.7")},
			{Name: "hidden.acme.demo", Addresses: addresses("240.240.0.2"), Limited: true, Namespaces: []string{"summit"}},
			{Name: "none.pinnacle.svc.cluster.local"},
			{Name: "outside.pinnacle.svc.cluster.local", Alias: "example.test"},
			{Name: "six.pinnacle.svc.cluster.local", Addresses: addresses("fd00:10:96::6")},
			{Name: "twin.pinnacle.svc.cluster.local", Alias: "cart.pinnacle.svc.cluster.local"},
		}},
		Namespaces: map[netip.Addr]string{netip.MustParseAddr("127.0.0.1"): "pinnacle"},
	}
}

// one is a table of one host of a domain.
func one(domain, name, address string) Table {
	return Table{Names: client.Names{Domain: domain, Hosts: []client.NamedHost{{Name: name, Addresses: []netip.Addr{netip.MustParseAddr(address)}}}}}
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
}

func TestEachFamilyIsAnsweredItsOwn(t *testing.T) {
	s := serve(t)
	s.Set(table())
	for _, c := range []struct {
		name string
		kind uint16
		want string
	}{
		{"cart", dns.TypeA, "10.96.0.7"}, {"cart", dns.TypeAAAA, ""},
		{"six", dns.TypeA, ""}, {"six", dns.TypeAAAA, "fd00:10:96::6"},
		{"both", dns.TypeA, "10.96.0.9"}, {"both", dns.TypeAAAA, "fd00:10:96::9"}, {"both", dns.TypeANY, "10.96.0.9 fd00:10:96::9"},
		{"none", dns.TypeA, ""}, {"cart", dns.TypeTXT, ""},
		{"twin", dns.TypeA, "cart.pinnacle.svc.cluster.local. 10.96.0.7"},
	} {
		answer := ask(t, s, "udp", c.name, c.kind)
		var got []string
		for _, r := range answer.Answer {
			switch r := r.(type) {
			case *dns.A:
				got = append(got, r.A.String())
			case *dns.AAAA:
				got = append(got, r.AAAA.String())
			case *dns.CNAME:
				got = append(got, r.Target)
			}
		}
		if text := strings.Join(got, " "); answer.Rcode != dns.RcodeSuccess || text != c.want {
			t.Errorf("%s %s: %q %s, want %q", c.name, dns.TypeToString[c.kind], text, dns.RcodeToString[answer.Rcode], c.want)
		}
	}
}

func TestWorkloadsSeeTheirOwnNamesOnly(t *testing.T) {
	s := serve(t)
	for _, c := range []struct {
		namespace, name string
		seen            bool
	}{
		{"pinnacle", "ad.acme.demo", true}, {"pinnacle", "ad", true}, {"pinnacle", "ad.pinnacle", true}, {"pinnacle", "hidden.acme.demo", false},
		{"summit", "ad.acme.demo", true}, {"summit", "ad", false}, {"summit", "ad.pinnacle.svc", false}, {"summit", "hidden.acme.demo", true},
		{"other", "ad.acme.demo", false}, {"other", "cart.pinnacle", true}, {"", "ad.acme.demo", false}, {"", "cart", false}, {"", "cart.pinnacle", true},
	} {
		known := table()
		known.Namespaces = map[netip.Addr]string{netip.MustParseAddr("127.0.0.1"): c.namespace}
		s.Set(known)
		answer := ask(t, s, "udp", c.name, dns.TypeA)
		if seen := answer.Rcode == dns.RcodeSuccess && len(answer.Answer) == 1; seen != c.seen {
			t.Errorf("%s from namespace %q: %v", c.name, c.namespace, answer)
		}
	}
}

func TestUnknownClusterNamesAreDeniedNotForwarded(t *testing.T) {
	outside := serve(t)
	outside.Set(one("test", "x.test", "192.0.2.2"))
	s := serve(t, outside.Address().String())
	s.Set(table())
	for _, name := range []string{"nobody", "nobody.pinnacle.svc", "nobody.pinnacle.svc.cluster.local", "cluster.local", "ad.summit.svc.cluster.local"} {
		if answer := ask(t, s, "udp", name, dns.TypeA); answer.Rcode != dns.RcodeNameError || len(answer.Ns) != 1 {
			t.Errorf("%s: %s", name, dns.RcodeToString[answer.Rcode])
		}
	}
	if n := outside.Counters.Answered.Load() + outside.Counters.Negative.Load() + outside.Counters.Failed.Load(); n != 0 {
		t.Errorf("%d questions left the cluster", n)
	}
}

func TestForeignNamesAreForwarded(t *testing.T) {
	outside := serve(t)
	outside.Set(one("test", "example.test", "192.0.2.1"))
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

func TestProcessFollowsItsTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dns.json")
	probe := serve(t)
	address := probe.Address().String()
	if err := probe.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{Address: address, Table: path, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	}()
	// Every query waits for the state that the step before asked for.
	answers := func(want string) {
		t.Helper()
		deadline := time.After(10 * time.Second)
		for {
			question := new(dns.Msg)
			question.SetQuestion("cart.pinnacle.svc.cluster.local.", dns.TypeA)
			answer, _, err := (&dns.Client{Net: "udp"}).Exchange(question, address)
			got := ""
			if err == nil && len(answer.Answer) == 1 {
				got = answer.Answer[0].(*dns.A).A.String()
			}
			if err == nil && got == want {
				return
			}
			select {
			case <-deadline:
				t.Fatalf("%q %v, want %q", got, err, want)
			case err := <-ended:
				t.Fatalf("ended: %v", err)
			default:
			}
		}
	}
	answers("")
	if err := WriteTable(path, one("cluster.local", "cart.pinnacle.svc.cluster.local", "10.96.0.7")); err != nil {
		t.Fatal(err)
	}
	answers("10.96.0.7")
	// A file that cannot be read changes nothing; the next one does.
	if err := errors.Join(os.WriteFile(path+".odd", []byte("{"), 0o600), os.Rename(path+".odd", path)); err != nil {
		t.Fatal(err)
	}
	answers("10.96.0.7")
	if err := WriteTable(path, one("cluster.local", "cart.pinnacle.svc.cluster.local", "10.96.0.8")); err != nil {
		t.Fatal(err)
	}
	answers("10.96.0.8")
	if kept, err := ReadTable(path); err != nil || kept.Names.Domain != "cluster.local" {
		t.Fatal(kept, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := Run(ctx, Config{Address: "192.0.2.77:1", Table: path}); err == nil {
		t.Error("an address that is not here")
	}
	if err := Run(ctx, Config{Address: address, Table: "/does/not/exist/x"}); err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Error(err)
	}
}

func TestResolversOfAnotherHostDoNotCount(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	stub, behind := write("stub", "nameserver 127.0.0.53\n"), write("behind", "nameserver 192.0.2.53\nnameserver fd00::53\n")
	empty, missing := write("empty", ""), filepath.Join(dir, "missing")
	for name, c := range map[string]struct {
		foreign bool
		files   []string
		want    string
	}{
		"own loopback":     {false, []string{stub, behind}, "127.0.0.53:53"},
		"foreign loopback": {true, []string{stub, behind}, "192.0.2.53:53 [fd00::53]:53"},
		"only loopback":    {true, []string{stub, missing}, "error: " + stub},
		"missing":          {false, []string{missing}, "error: " + missing},
		"missing, then":    {false, []string{missing, behind}, "192.0.2.53:53 [fd00::53]:53"},
		"none":             {false, []string{empty}, "error: " + empty},
	} {
		found, err := Resolvers(c.foreign, c.files...)
		got := strings.Join(found, " ")
		wanted, failure := strings.CutPrefix(c.want, "error: ")
		if failure && (err == nil || !strings.Contains(err.Error(), wanted)) || !failure && (err != nil || got != c.want) {
			t.Errorf("%s: %q %v, want %q", name, got, err, c.want)
		}
	}
}

// A workload that waits for names which nobody answers, or holds connections, keeps no other from asking.
func TestOneAskerKeepsNoOtherOut(t *testing.T) {
	hole, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	s := serve(t, hole.LocalAddr().String())
	greedy, other := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")
	for i := range maxForwardsOfOne + 1 {
		if s.forwards.take(greedy) != (i < maxForwardsOfOne) {
			t.Errorf("%d", i)
		}
	}
	for range 3 * maxConnectionsOfOne {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: greedy.AsSlice()}}).Dial("tcp", s.Address().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	question := new(dns.Msg)
	question.SetQuestion("cart.pinnacle.svc.cluster.local.", dns.TypeA)
	s.Set(table())
	c := &dns.Client{Net: "tcp", Dialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: other.AsSlice()}}}
	if answer, _, err := c.Exchange(question, s.Address().String()); err != nil || len(answer.Answer) != 1 {
		t.Errorf("%v %v", answer, err)
	}
	if refused := s.streams.Refused.Load(); refused != 2*maxConnectionsOfOne {
		t.Errorf("%d connections were refused", refused)
	}
	if !s.forwards.take(other) {
		t.Error("there is no place for another one")
	}
}
