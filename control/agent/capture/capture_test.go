package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/pinned"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/interception"
)

// each runs a test for both families of addresses.
func each(t *testing.T, f func(t *testing.T, m *machine)) {
	t.Helper()
	for _, fam := range families {
		t.Run(fam.name, func(t *testing.T) { f(t, newMachine(t, fam)) })
	}
}

// outbound and inbound are the proxy's listeners.
func (m *machine) outbound(t *testing.T) socket {
	t.Helper()
	return listen(t, m.proxy, netip.AddrPortFrom(m.loopback, cluster.PortOutbound), 128)
}

func (m *machine) inbound(t *testing.T) socket {
	t.Helper()
	any := netip.IPv4Unspecified()
	if m.domain == unix.AF_INET6 {
		any = netip.IPv6Unspecified()
	}
	return listen(t, m.proxy, netip.AddrPortFrom(any, cluster.PortInbound), 128)
}

// goesTo says that a connection to an address was captured.
func goesTo(t *testing.T, app, proxy socket, to netip.AddrPort) {
	t.Helper()
	taken := proxy.accept(t)
	if got, err := taken.original(t); err != nil || got != to {
		t.Errorf("the proxy hears of %v instead of %v: %v", got, to, err)
	}
	exchange(t, app, taken)
}

func TestDialledGoesToTheProxy(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		proxy := m.outbound(t)
		to := netip.AddrPortFrom(m.elsewhere, 80)
		domains := []int{m.domain}
		if m.domain == unix.AF_INET {
			domains = append(domains, unix.AF_INET6) // Mapped.
		}
		for _, domain := range domains {
			app := mustDial(t, m.app, domain, to)
			if got := app.peer(t); got != to {
				t.Errorf("the application's peer is %v", got)
			}
			if got := app.local(t).Addr(); got != m.own() {
				t.Errorf("the application's own address is %v", got)
			}
			taken := proxy.accept(t)
			if got, err := taken.original(t); err != nil || got != to {
				t.Errorf("the proxy hears of %v: %v", got, err)
			}
			if got := taken.peer(t); got != app.local(t) {
				t.Errorf("the proxy's peer is %v, %v is the application's address", got, app.local(t))
			}
			exchange(t, app, taken)
		}
		// A port that it chose itself, and its own address.
		for _, from := range []netip.Addr{m.own(), {}} {
			app := open(t, m.app, m.domain, 0)
			source := netip.AddrPortFrom(from, 4321)
			if !from.IsValid() {
				source = netip.AddrPortFrom(netip.IPv4Unspecified(), 4322)
				if m.domain == unix.AF_INET6 {
					source = netip.AddrPortFrom(netip.IPv6Unspecified(), 4322)
				}
			}
			m.app.do(t, func() error {
				return errors.Join(unix.Bind(app.fd, at(m.domain, source)), unix.Connect(app.fd, at(m.domain, to)))
			})
			goesTo(t, app, proxy, to)
		}
		if s := m.status(t); s.Outbound != uint64(len(domains))+2 {
			t.Errorf("%+v", s)
		}
		m.nothingPending(t)
	})
}

// nothingPending says that what clients on their way needed has been given back.
func (m *machine) nothingPending(t *testing.T) {
	t.Helper()
	var key uint64
	if err := m.objects.Maps["usages"].NextKey(nil, &key); err != nil {
		t.Fatal(err)
	}
	var own usage
	if err := m.objects.Maps["usages"].Lookup(key, &own); err != nil || own.Pending != 0 {
		t.Errorf("%+v are counted: %v", own, err)
	}
	var c client
	if err := m.objects.Maps["pending"].NextKey(nil, &c); err == nil {
		t.Errorf("%+v is still on its way", c)
	}
}

func TestWhatIsNotCaptured(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		outbound, inbound := m.outbound(t), m.inbound(t)
		server := listen(t, m.app, netip.AddrPortFrom(m.own(), 8080), 8)
		local := listen(t, m.app, netip.AddrPortFrom(m.loopback, 8081), 8)
		dns := listen(t, m.stranger, netip.AddrPortFrom(m.dns, cluster.PortDNS), 8)
		other := listen(t, m.stranger, netip.AddrPortFrom(m.dns, 54), 8)

		// Between parts of an application, and to the one that answers names.
		exchange(t, mustDial(t, m.app, m.domain, netip.AddrPortFrom(m.own(), 8080)), server.accept(t))
		exchange(t, mustDial(t, m.app, m.domain, netip.AddrPortFrom(m.loopback, 8081)), local.accept(t))
		asked := netip.AddrPortFrom(m.dns, 53)
		comesTo(t, mustDial(t, m.app, m.domain, asked), dns, asked)
		// What the proxy sends on, and its last leg.
		exchange(t, mustDial(t, m.proxy, m.domain, netip.AddrPortFrom(m.dns, 54)), other.accept(t))
		leg := open(t, m.proxy, m.domain, 0)
		m.proxy.do(t, func() error {
			return errors.Join(unix.Bind(leg.fd, at(m.domain, netip.AddrPortFrom(m.sidecar, 0))), unix.Connect(leg.fd, at(m.domain, netip.AddrPortFrom(m.own(), 8080))))
		})
		exchange(t, leg, server.accept(t))
		outbound.empty(t)

		// A proxy that calls its own workload comes in as others do.
		inbound.empty(t)
		own := netip.AddrPortFrom(m.own(), 8080)
		goesTo(t, mustDial(t, m.proxy, m.domain, own), inbound, own)
		server.empty(t)
		m.nothingPending(t)
	})
}

func TestWhatArrivesGoesToTheProxy(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		// Two workers.
		workers := []socket{m.inbound(t), m.inbound(t)}
		to := netip.AddrPortFrom(m.own(), 8080)
		if _, err := dial(t, m.stranger, m.domain, to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
		server := listen(t, m.app, to, 8)
		second := listen(t, m.app, to, 8)
		take := func() socket {
			t.Helper()
			for {
				poll := []unix.PollFd{{Fd: int32(workers[0].fd), Events: unix.POLLIN}, {Fd: int32(workers[1].fd), Events: unix.POLLIN}}
				n, err := unix.Poll(poll, patience*1000)
				switch {
				case errors.Is(err, unix.EINTR):
					continue
				case err != nil || n == 0:
					t.Fatalf("nobody came: %v", err)
				}
				if poll[0].Revents != 0 {
					return workers[0].accept(t)
				}
				return workers[1].accept(t)
			}
		}
		arrives := func() {
			t.Helper()
			caller := mustDial(t, m.stranger, m.domain, to)
			taken := take()
			if got, err := taken.original(t); err != nil || got != to {
				t.Errorf("the proxy hears of %v: %v", got, err)
			}
			// As a packet filter would redirect it.
			if got, want := taken.local(t), netip.AddrPortFrom(m.own(), cluster.PortInbound); got != want {
				t.Errorf("the proxy's own address is %v, not %v", got, want)
			}
			if got := caller.peer(t); got != to {
				t.Errorf("the caller's peer is %v", got)
			}
			exchange(t, caller, taken)
		}
		for range 8 {
			arrives()
		}
		server.empty(t)
		server.close(t)
		arrives()
		// The worker that was there first goes.
		workers[0].close(t)
		workers[0] = workers[1]
		arrives()
		second.empty(t)
		second.close(t)
		if _, err := dial(t, m.stranger, m.domain, to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("nobody listens any longer: %v", err)
		}
		m.add(t, 8080)
		arrives()
		// Its program can still have the port, as programs of servers ask for it.
		server = listen(t, m.app, to, 8)
		arrives()
		server.empty(t)
		workers[1].close(t)
		if _, err := dial(t, m.stranger, m.domain, to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("without a proxy: %v", err)
		}
		server.empty(t)
	})
}

// The next agent takes over: connections go on, and new ones are captured.
func TestTakeover(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		outbound, inbound := m.outbound(t), m.inbound(t)
		server := listen(t, m.app, netip.AddrPortFrom(m.own(), 8080), 8)
		to, in := netip.AddrPortFrom(m.elsewhere, 80), netip.AddrPortFrom(m.own(), 8080)
		app := mustDial(t, m.app, m.domain, to)
		caller := mustDial(t, m.stranger, m.domain, in)
		m.Close()
		later := mustDial(t, m.app, m.domain, to) // While nobody is there.
		m.attach(t)
		m.add(t)
		if err := m.Sweep([]string{m.path()}); err != nil {
			t.Fatal(err)
		}
		if err := m.Captured(m.path()); err != nil {
			t.Error(err)
		}
		goesTo(t, app, outbound, to)
		goesTo(t, later, outbound, to)
		goesTo(t, caller, inbound, in)
		goesTo(t, mustDial(t, m.app, m.domain, to), outbound, to)
		goesTo(t, mustDial(t, m.stranger, m.domain, in), inbound, in)
		server.empty(t)
	})
}

// Maps of another version are not taken over, and what is attached goes on.
func TestMapsOfAnotherVersion(t *testing.T) {
	m := newMachine(t, families[0])
	outbound := m.outbound(t)
	counts, pin := m.objects.Maps["counts"], filepath.Join(m.dir, "counts")
	other, err := ebpf.NewMap(&ebpf.MapSpec{Type: counts.Type(), KeySize: counts.KeySize(), ValueSize: counts.ValueSize(), MaxEntries: counts.MaxEntries() + 1})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := errors.Join(os.Remove(pin), other.Pin(pin)); err != nil {
		t.Fatal(err)
	}
	if _, err := Attach(m.dir, m.cgroup); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Errorf("%v", err)
	}
	to := netip.AddrPortFrom(m.elsewhere, 80)
	goesTo(t, mustDial(t, m.app, m.domain, to), outbound, to)
	if s := m.status(t); s.Outbound != 1 {
		t.Errorf("%+v", s)
	}
}

func TestNothingStays(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.leave(t, interception.Rules{OnlyGroups: true}, 1, 2, 3)
		app := listen(t, m.app, netip.AddrPortFrom(m.own(), 8080), 8)
		clean := func(how string) {
			t.Helper()
			names, err := pinned.Names(m.dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if len(name) > len(steeredPrefix) && name[:len(steeredPrefix)] == steeredPrefix {
					t.Errorf("after %s there is %s", how, name)
				}
			}
			for _, name := range []string{"workloads", "rules", "usages", "ports", "pending"} {
				if err := m.objects.Maps[name].NextKey(nil, make([]byte, m.objects.Maps[name].KeySize())); err == nil {
					t.Errorf("after %s something is in map %s", how, name)
				}
			}
			if err := m.Captured(m.path()); err == nil {
				t.Errorf("after %s it is captured", how)
			}
		}
		if err := m.Remove(m.path()); err != nil {
			t.Fatal(err)
		}
		clean("Remove")
		exchange(t, mustDial(t, m.stranger, m.domain, netip.AddrPortFrom(m.own(), 8080)), app.accept(t))
		m.add(t, 4)
		if err := m.Sweep([]string{"/run/netns/none"}); err != nil {
			t.Fatal(err)
		}
		clean("Sweep")
		if err := m.Remove("/run/netns/none"); err != nil {
			t.Error(err)
		}
		m.add(t)
		if err := Detach(m.dir); err != nil {
			t.Fatal(err)
		}
		if mounted, err := pinned.IsMounted(m.dir); err != nil || mounted {
			t.Errorf("%v %v", mounted, err)
		}
		if err := Detach(m.dir); err != nil {
			t.Error(err)
		}
	})
}

// What a proxy that takes nothing leaves is bounded, and comes back.
func TestShares(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := newMachineOf(t, f, bounds{pending: 4, blocks: roomy.blocks})
			proxy := listen(t, m.proxy, netip.AddrPortFrom(m.loopback, cluster.PortOutbound), 0)
			to := netip.AddrPortFrom(m.elsewhere, 80)
			var waiting []socket
			for range 16 {
				s := open(t, m.app, m.domain, 0)
				m.app.do(t, func() error {
					if err := unix.SetNonblock(s.fd, true); err != nil {
						return err
					}
					if err := unix.Connect(s.fd, at(m.domain, to)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
						return err
					}
					return nil
				})
				waiting = append(waiting, s)
			}
			if s := m.status(t); s.Refused["pending"] == 0 {
				t.Errorf("%+v", s)
			}
			taken := proxy.accept(t)
			if got, err := taken.original(t); err != nil || got != to {
				t.Errorf("%v %v", got, err)
			}
			for _, s := range waiting {
				unix.Close(s.fd)
			}
			unix.Close(proxy.fd)
			m.nothingPending(t)
		})
	}
}

func TestAttachSaysWhatIsMissing(t *testing.T) {
	m := newMachine(t, families[0])
	dir := t.TempDir() + "/bpf"
	if _, err := Attach(dir, t.TempDir()); err == nil {
		t.Error("attached to what is no control group")
	}
	if mounted, err := pinned.IsMounted(dir); err == nil && mounted {
		t.Error("it left its file system")
	}
	if err := Probe(); err != nil {
		t.Error(err)
	}
	if err := m.Add(Workload{Netns: "/run/netns/none", ProxyGroup: m.proxyGroup}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := m.Add(Workload{Netns: m.path(), ProxyGroup: "/nowhere"}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// The agent asks as a workload would.
func TestDial(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		m.unredirect(t)
		outbound := m.outbound(t)
		name := fmt.Sprintf("heddle-capture-test-%d", os.Getpid())
		named(t, name, m.path())
		to := netip.AddrPortFrom(m.elsewhere, 80)
		c, err := m.Dial(t.Context(), name, to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		taken := outbound.accept(t)
		if got, err := taken.original(t); err != nil || got != to {
			t.Errorf("the proxy hears of %v: %v", got, err)
		}
		m.nothingPending(t)
		server := listen(t, m.app, netip.AddrPortFrom(m.own(), 8080), 8)
		within, err := m.Dial(t.Context(), name, netip.AddrPortFrom(m.own(), 8080))
		if err != nil {
			t.Fatal(err)
		}
		within.Close()
		server.accept(t)
		dns := listen(t, m.stranger, netip.AddrPortFrom(m.dns, cluster.PortDNS), 8)
		asked, err := m.Dial(t.Context(), name, netip.AddrPortFrom(m.dns, 53))
		if err != nil {
			t.Fatal(err)
		}
		asked.Close()
		dns.accept(t)
		unix.Close(outbound.fd)
		if _, err := m.Dial(t.Context(), name, to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Error(err)
		}
		m.nothingPending(t)
	})
}

// named gives a network namespace a name until the test ends.
func named(t *testing.T, name, path string) {
	t.Helper()
	link := network.Path(name)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(link, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(link, unix.MNT_DETACH), os.Remove(link)); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount(path, link, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
}

// A program that listens on one port after the other takes room for each once, and no more than a 64th.
func TestPortsOfALifetime(t *testing.T) {
	each(t, func(t *testing.T, m *machine) {
		inbound := m.inbound(t)
		for i := range uint16(300) {
			to := netip.AddrPortFrom(m.own(), 20000+i)
			s := listen(t, m.app, to, 1)
			if i == 299 {
				mustDial(t, m.stranger, m.domain, to)
				inbound.accept(t)
			}
			unix.Close(s.fd)
			if _, err := dial(t, m.stranger, m.domain, to); !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatalf("%v is closed: %v", to, err)
			}
		}
		blocks := 0
		var key block
		for err := m.objects.Maps["ports"].NextKey(nil, &key); err == nil; err = m.objects.Maps["ports"].NextKey(key, &key) {
			blocks++
		}
		if blocks == 0 || blocks > 300/blockSize+2 {
			t.Errorf("%d blocks for 300 ports", blocks)
		}
		if room := m.objects.Maps["ports"].MaxEntries(); (1<<16)/blockSize*64 > room {
			t.Errorf("all ports of a workload take more than a 64th of %d", room)
		}
	})
}

// One that listens wherever it can leaves room for others, and gives back what it had when it goes.
func TestOneWorkloadDoesNotTakeAllRoomForPorts(t *testing.T) {
	m := newMachineOf(t, families[0], bounds{pending: roomy.pending, blocks: 4})
	for range 2 {
		before := m.status(t).Refused["ports"]
		for block := range uint16(5) {
			s := listen(t, m.app, netip.AddrPortFrom(m.own(), 20000+block*blockSize), 1)
			defer unix.Close(s.fd)
		}
		// Half of what there is room for.
		if s := m.status(t); s.Refused["ports"] != before+3 {
			t.Errorf("%+v, want 3 more than %d refused", s, before)
		}
		if err := m.Remove(m.path()); err != nil {
			t.Fatal(err)
		}
		m.add(t, 8080)
	}
}

// A workload for which a map has no place is not captured, and told which map that is.
func TestNoRoomForAWorkload(t *testing.T) {
	m := newMachine(t, families[0])
	for _, name := range []string{"usages", "workloads", "rules"} {
		if err := m.Remove(m.path()); err != nil {
			t.Fatal(err)
		}
		full := m.objects.Maps[name]
		value := make([]byte, full.ValueSize())
		for i := range uint64(full.MaxEntries()) {
			// The kernel counts up its cookies from 1.
			if err := full.Put(1<<62+i, value); err != nil {
				t.Fatal(err)
			}
		}
		w := Workload{Netns: m.path(), Address: m.own(), DNS: m.dns, ProxyGroup: m.proxyGroup, Rules: interception.Rules{ExcludedOutboundPorts: []uint16{80}}}
		err := m.Add(w)
		if want := "all 16384 places of the eBPF map " + name + " are taken"; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "heddle down --keep-data") {
			t.Errorf("%v, want %q", err, want)
		}
		if err := m.Captured(m.path()); err == nil {
			t.Errorf("captured without a place in %s", name)
		}
		err = pinned.RemoveKeys(full, func(cookie uint64) bool { return cookie >= 1<<62 })
		if err := errors.Join(err, m.Add(w)); err != nil {
			t.Error(err)
		}
	}
}

// Where there is no room to note that somebody listens, nobody gets past the proxy: the port is as closed.
func TestNoRoomForPorts(t *testing.T) {
	m := newMachine(t, families[0])
	m.inbound(t)
	all := m.objects.Maps["ports"]
	const each = 1 << 16 / blockSize
	for i := range all.MaxEntries() {
		other := 1<<62 + uint64(i/each)
		err := all.Put(block{Netns: other, Number: i % each}, ports{})
		if err := errors.Join(err, m.objects.Maps["usages"].Put(other, usage{Blocks: each})); err != nil {
			t.Fatal(err)
		}
	}
	to := netip.AddrPortFrom(m.own(), 8080)
	server := listen(t, m.app, to, 8)
	if s := m.status(t); s.Refused["ports"] != 1 {
		t.Errorf("%+v", s)
	}
	if _, err := dial(t, m.stranger, m.domain, to); !errors.Is(err, unix.ECONNREFUSED) {
		t.Error(err)
	}
	server.empty(t)
	if err := m.Add(Workload{Netns: m.path(), Address: m.own(), DNS: m.dns, ProxyGroup: m.proxyGroup, Ports: []uint16{8080}}); err == nil || !strings.Contains(err.Error(), "all 65536 places of the eBPF map ports are taken") {
		t.Errorf("a declared port for which there is no room: %v", err)
	}
	// What nobody has any longer makes room again.
	if err := m.Sweep([]string{m.path()}); err != nil {
		t.Fatal(err)
	}
	m.add(t, 8080)
}

// What it costs to have a workload captured and forgotten, alone and among many.
func BenchmarkRemove(b *testing.B) {
	for _, others := range []int{0, 10_000} {
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			m := newMachine(b, families[0])
			for i := range others {
				// The kernel counts up its cookies from 1.
				cookie := 1<<62 + uint64(i)
				err := m.objects.Maps["usages"].Put(cookie, usage{Blocks: 4})
				for number := range uint32(4) {
					err = errors.Join(err, m.objects.Maps["ports"].Put(block{Netns: cookie, Number: number}, ports{}))
				}
				if err := errors.Join(err, m.objects.Maps["workloads"].Put(cookie, workload{})); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				b.StopTimer()
				m.add(b)
				b.StartTimer()
				if err := m.Remove(m.path()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
