//go:build hostile

package hostile

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"
	"text/tabwriter"
	"time"

	"heddle.io/heddle/test/hostile/flood"
	"heddle.io/heddle/test/hostile/subject"
	"heddle.io/heddle/test/hostile/upstream"
)

// Bounds for every flood. They hold for a debug build whose only worker shares two processors with the attackers, the
// other clients and the upstream; what breaks them is another order of magnitude, not a slow machine.
const (
	// slower is how many times longer the others' median may take during a flood, if it is above medianFloor: one
	// saturating connection and an honest one get turns on the same worker, so some multiple is fair.
	slower      = 10
	medianFloor = 20 * time.Millisecond
	// tail bounds the others' 99th percentile; a worker that is held for longer in one turn is held.
	tail = 500 * time.Millisecond
	// growth of resident memory: what some connections' buffers and the allocator's own habits come to.
	growth = 32 << 20
	// logged bytes: a line for each connection that is ended, not one for each frame.
	logged = 64 << 10
	// upstreamConnections that may be opened meanwhile, where an attack has no requests to speak of: the other clients'
	// own, when one was busy.
	upstreamConnections = 16
	// headersTimeout of the configuration, and how much later the end may come.
	headersTimeout, headersSlack = 2 * time.Second, time.Second
	// mostResets that a connection may send before it is ended: Envoy's limit is 250 in its first evaluation, and some
	// are on the wire when the end comes.
	mostResets = 300
)

// flooding is an attack with what is particular to it.
type flooding struct {
	flood.Attack
	// lasts is 1.5 s unless set.
	lasts time.Duration
	// oldest that a connection of the attack may become.
	oldest time.Duration
	// most units that it may send.
	most int64
	// growth, tail, upstreams bound instead of the constants.
	growth    int64
	tail      time.Duration
	upstreams int
	// fixed is whether a long run has no more connections: the circuit breakers allow 1024 requests, the others' among
	// them.
	fixed bool
	// twoProxies puts another proxy behind the first, with HTTP/2 between.
	twoProxies bool
}

// floodings in their order.
func floodings() []flooding {
	var all []flooding
	for _, tls := range []bool{false, true} {
		for _, a := range flood.Control {
			a.TLS = tls
			if tls {
				a.Name, a.Listener = a.Name+", TLS", "tls"
			}
			f := flooding{Attack: a, upstreams: upstreamConnections + a.Connections}
			if a.Setup != nil {
				// The attack has a request, on each connection that it comes back with.
				f.upstreams = 200
			}
			all = append(all, f)
		}
	}
	return append(all,
		flooding{Attack: flood.HalfHead, lasts: headersTimeout + headersSlack + 500*time.Millisecond, oldest: headersTimeout + headersSlack},
		flooding{Attack: flood.ResetsAtOnce, most: mostResets, upstreams: 4000},
		flooding{Attack: flood.ResetsAfter, most: mostResets, upstreams: 4000},
		flooding{Attack: named(flood.ResetsAtOnce, "resets at once, two proxies"), most: mostResets, upstreams: 4000, twoProxies: true},
		flooding{Attack: named(flood.ResetsAfter, "resets after 1 ms, two proxies"), most: mostResets, upstreams: 4000, twoProxies: true},
		flooding{Attack: flood.ConnectionNames},
		flooding{Attack: flood.EscapedPaths},
		flooding{Attack: flood.RepeatedField},
		// 1 MiB of answers, which is per_connection_buffer_limit_bytes, and half as much for heads, tables and tasks. A
		// thousand connections to the upstream are opened in one moment, which the kernel alone takes some time for.
		flooding{Attack: flood.UnreadStreams, fixed: true, lasts: 3 * time.Second, growth: 5*(3<<20)/2 + growth, tail: 2 * tail, upstreams: 5*200 + upstreamConnections},
		// What the edge holds of each answer is one stream's window and what was taken from it, and both have their tasks; the
		// others' answers come on the same connection.
		flooding{Attack: named(flood.UnreadStreams, "200 streams unread, two proxies"), fixed: true, lasts: 3 * time.Second, growth: 1000*(96<<10) + 5*(3<<20)/2 + growth, tail: 2 * tail, upstreams: 5*200 + upstreamConnections, twoProxies: true},
		// 1 MiB of large heads, which is per_connection_buffer_limit_bytes, and one more; as much of answers.
		flooding{Attack: flood.UnreadHeads, lasts: 4 * time.Second, growth: 8*(5<<19) + growth, upstreams: 8*4 + upstreamConnections},
		flooding{Attack: flood.WaitingHeads, fixed: true, lasts: 3 * time.Second, growth: 5*(3<<19) + growth, upstreams: 5*200 + upstreamConnections},
		flooding{Attack: flood.Unread1, growth: 100<<20 + growth, upstreams: 100 + upstreamConnections},
		flooding{Attack: flood.SlowHeads, lasts: headersTimeout + headersSlack + 500*time.Millisecond, oldest: headersTimeout + headersSlack},
		flooding{Attack: flood.SlowBodies, upstreams: 200 + upstreamConnections},
		// 64 MiB of bodies, and for each connection what was read and not yet passed on.
		flooding{Attack: flood.RetriedBodies, fixed: true, lasts: 4500 * time.Millisecond, growth: 64<<20 + 300*(64<<10) + growth, upstreams: 300 + upstreamConnections},
		flooding{Attack: flood.Silent},
		flooding{Attack: flood.HalfHello},
	)
}

func named(a flood.Attack, name string) flood.Attack {
	a.Name = name
	return a
}

// before is how long a subject's clients are watched in peace.
func before(subject string) time.Duration {
	if isLong(subject) {
		return 5 * time.Second
	}
	return 500 * time.Millisecond
}

// isLong is whether the hour is a subject's: Envoy is there for comparison, and a moment shows what it does.
func isLong(subject string) bool { return long && subject == "heddle" }

func (f flooding) duration(subject string) time.Duration {
	d := f.lasts
	switch {
	case d == 0 && subject == "envoy":
		d = time.Second // It is not judged.
	case d == 0:
		d = 1500 * time.Millisecond
	}
	if isLong(subject) {
		d += time.Minute
	}
	return d
}

// TestFloods attacks each proxy in every way. Envoy is measured for comparison, over plain connections, and not judged.
func TestFloods(t *testing.T) {
	forSubjects(t, false, func(t *testing.T, name string) {
		table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintf(table, "\n%s\tattackers\tsent/s\tMB/s\tended\tothers' p50\tduring\tp99\tduring\tfailed\tRSS +MB\tlog kB\tupstream conns\n", name)
		for _, f := range floodings() {
			if name == "envoy" && f.TLS {
				continue
			}
			if isLong(name) && !f.fixed {
				f.Connections *= 2
			}
			t.Run(f.Name, func(t *testing.T) {
				counted(t)
				one(t, name, f, table)
			})
		}
		if err := table.Flush(); err != nil {
			t.Error(err)
		}
	})
}

// measured during a flood.
type measured struct {
	sent          *flood.Sent
	calm, flooded flood.Figures
	grown, logged int64
	upstreams     int
}

func one(t *testing.T, name string, f flooding, table *tabwriter.Writer) {
	up, first, front := startChain(t, name, f.twoProxies)
	plain, attacked := first.Listeners[0], first.Listeners[0]
	if at := slices.IndexFunc(first.Listeners, func(l subject.Listener) bool { return l.Name == f.Listener }); at >= 0 {
		attacked = first.Listeners[at]
	}
	clients := flood.StartClients(first.At(plain))
	defer clients.Stop()
	m := measured{}
	m.calm = clients.Watch(after(before(name)))
	rss := resident(t, front)
	logBytes, upstreams := written(front), up.Connections()
	ctx, cancel := context.WithTimeout(context.Background(), f.duration(name))
	defer cancel()
	sent, done := f.Start(ctx, first.At(attacked))
	m.sent = sent
	peak := make(chan int64)
	go func() { peak <- highest(ctx, front) }()
	m.flooded = clients.Watch(ctx.Done())
	m.grown = <-peak - rss
	<-done
	m.logged, m.upstreams = written(front)-logBytes, up.Connections()-upstreams
	row(table, name, f, m)
	for _, p := range front {
		if err := p.Alive(); err != nil {
			t.Fatal(err)
		}
	}
	if name != "heddle" {
		return
	}
	f.judge(t, m)
	over := clients.Watch(after(before(name)))
	if over.Failures > 0 {
		t.Errorf("%d of %d requests fail when the flood is over: %v", over.Failures, over.Requests, over.Failure)
	}
}

// startChain starts an upstream and one proxy, or two behind each other; the first is where clients and attackers go.
func startChain(t *testing.T, name string, two bool) (*upstream.HTTP1, *subject.Proxy, []*subject.Proxy) {
	t.Helper()
	address := subject.Address()
	at := net.JoinHostPort(address, "20000")
	up, err := upstream.NewHTTP1(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(up.Close)
	start := func(address, to string, http2 bool) *subject.Proxy {
		p, err := subject.Start(subject.Settings{Name: name, Binary: binaries[name], Address: address, Dir: t.TempDir(), Listeners: []subject.Listener{
			{Name: "plain", Kind: "plain", Port: 10000, Upstream: to, Upstream2: http2},
			{Name: "tls", Kind: "plain", Port: 10001, Upstream: to, Upstream2: http2, TLS: true},
			{Name: "policies", Kind: "policies", Port: 10002, Upstream: to, Upstream2: http2},
			{Name: "policy", Kind: "policy", Port: 10003, Upstream: to, Upstream2: http2},
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Stop)
		return p
	}
	last := start(address, at, false)
	if !two {
		return up, last, []*subject.Proxy{last}
	}
	edge := start(subject.Address(), last.At(last.Listeners[0]), true)
	return up, edge, []*subject.Proxy{edge, last}
}

// after is closed when some time has passed.
func after(d time.Duration) <-chan struct{} {
	over := make(chan struct{})
	time.AfterFunc(d, func() { close(over) })
	return over
}

func resident(t *testing.T, all []*subject.Proxy) int64 {
	t.Helper()
	var sum int64
	for _, p := range all {
		rss, err := p.RSS()
		if err != nil {
			t.Fatal(err)
		}
		sum += rss
	}
	return sum
}

// highest resident memory until the context ends.
func highest(ctx context.Context, all []*subject.Proxy) int64 {
	var most int64
	for {
		var sum int64
		for _, p := range all {
			// A proxy that has ended is found out elsewhere.
			rss, _ := p.RSS()
			sum += rss
		}
		most = max(most, sum)
		select {
		case <-ctx.Done():
			return most
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func written(all []*subject.Proxy) int64 {
	var sum int64
	for _, p := range all {
		sum += p.LogBytes()
	}
	return sum
}

func row(table *tabwriter.Writer, name string, f flooding, m measured) {
	seconds := f.duration(name).Seconds()
	ms := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds()*1000, 'f', 1, 64) }
	fmt.Fprintf(table, "%s\t%d\t%.0f\t%.1f\t%d\t%s\t%s\t%s\t%s\t%d\t%.1f\t%.1f\t%d\n", f.Name, f.Connections,
		float64(m.sent.Units.Load())/seconds, float64(m.sent.Bytes.Load())/seconds/1e6, m.sent.Ended.Load(),
		ms(m.calm.P50), ms(m.flooded.P50), ms(m.calm.P99), ms(m.flooded.P99), m.flooded.Failures,
		float64(m.grown)/(1<<20), float64(m.logged)/1e3, m.upstreams)
}

// judge holds a flood against its bounds.
func (f flooding) judge(t *testing.T, m measured) {
	t.Helper()
	if bound := max(slower*m.calm.P50, medianFloor); m.flooded.P50 > bound {
		t.Errorf("the others' median is %v during the flood, %v before; want at most %v", m.flooded.P50, m.calm.P50, bound)
	}
	if bound := max(f.tail, tail); m.flooded.P99 > bound {
		t.Errorf("the others' 99th percentile is %v during the flood, want at most %v", m.flooded.P99, bound)
	}
	if m.flooded.Failures > 0 {
		t.Errorf("%d of the others' %d requests failed, want none: %v", m.flooded.Failures, m.flooded.Requests, m.flooded.Failure)
	}
	if m.calm.Failures > 0 || m.calm.Requests == 0 {
		t.Errorf("%d of %d requests failed before the flood: %v", m.calm.Failures, m.calm.Requests, m.calm.Failure)
	}
	if m.sent.Units.Load() == 0 {
		t.Error("the attack sent nothing, so nothing was tested")
	}
	bound := f.growth
	if bound == 0 {
		bound = growth
	}
	if m.grown > bound {
		t.Errorf("resident memory grew by %d MiB, want at most %d", m.grown>>20, bound>>20)
	}
	if m.logged > logged {
		t.Errorf("%d bytes of log, want at most %d", m.logged, int64(logged))
	}
	most := f.upstreams
	if most == 0 {
		most = upstreamConnections
	}
	if long {
		most *= 40
	}
	if m.upstreams > most {
		t.Errorf("%d connections to the upstream were opened, want at most %d", m.upstreams, most)
	}
	if age := time.Duration(m.sent.Oldest.Load()); f.oldest > 0 && age > f.oldest {
		t.Errorf("a connection of the attack lived for %v, want at most %v", age, f.oldest)
	}
	if units := m.sent.Most.Load(); f.most > 0 && units > f.most {
		t.Errorf("one connection reset %d streams, want it ended after at most %d", units, f.most)
	}
}
