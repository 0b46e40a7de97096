package stage

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// way is how a connection is made.
type way struct {
	tls  bool
	port int
}

// plan is what a generation says.
type plan struct {
	mode string
	port int
}

// call is how its clients connect.
func (p plan) call() way { return way{tls: p.mode != "DISABLE", port: p.port} }

func (p plan) takes(w way) bool {
	return w.port == p.port && (p.mode == "PERMISSIVE" || w.tls == (p.mode == "STRICT"))
}

// effect of a plan in place of another.
func effect(now, was plan) Effect {
	switch {
	case now == was:
		return Alone
	case now.port == was.port && now.mode == "PERMISSIVE":
		return Adds
	}
	return Replaces
}

// takes says whether a server that goes by several plans takes a connection. What one says of the mode holds for all ports.
func takes(plans []plan, w way) bool {
	for _, port := range plans {
		for _, mode := range plans {
			if (plan{mode.mode, port.port}).takes(w) {
				return true
			}
		}
	}
	return false
}

// peer is a proxy that is a client, and a server unless it is a gateway.
type peer struct {
	id                 string
	connected, gateway bool
	// runs what it was sent last of what it took; next is what it has still to take, since the change owes.
	runs, next InForce
	owes       int64
	// stuck proxies take nothing; refusing ones answer, and go on with what they have.
	stuck, refuses bool
}

// mesh is a controller with its proxies.
type mesh struct {
	t        *testing.T
	now      time.Time
	plans    map[Generation]plan
	machine  *Machine
	newest   Generation
	kept     InForce
	change   int64
	peers    []*peer
	excepted map[string]bool
	limits   Limits
}

// limit of answers; connections are made at once.
const limit = 30 * time.Second

func newMesh(t *testing.T, first plan, peers ...string) *mesh {
	m := &mesh{t: t, now: time.Unix(0, 0), plans: map[Generation]plan{1: first}, newest: 1, excepted: map[string]bool{}, limits: Limits{Answer: limit, Anew: limit}}
	m.machine = New(m.limits, 1, 0)
	m.push()
	for _, id := range peers {
		m.peers = append(m.peers, &peer{id: id, connected: true, gateway: id == "gateway", runs: m.machine.InForce()})
	}
	return m
}

// push keeps what is in force, and sends it.
func (m *mesh) push() {
	m.kept = m.machine.InForce()
	m.change++
	for _, p := range m.peers {
		if p.connected {
			m.send(p)
		}
	}
	m.machine.Pushed(m.change)
}

func (m *mesh) send(p *peer) {
	p.next = m.kept
	if p.owes == 0 {
		p.owes = m.change
	}
}

func (m *mesh) want(p plan) {
	m.newest++
	m.plans[m.newest] = p
	m.machine.Want(m.now, m.newest, effect(m.plans[m.newest], m.plans[m.machine.InForce().Clients]))
	m.push()
	m.look()
}

func (m *mesh) look() {
	m.t.Helper()
	for {
		var all []Proxy
		for _, p := range m.peers {
			owes := p.owes
			if !p.connected {
				owes = 1
			}
			all = append(all, Proxy{ID: p.id, Owes: owes, Serves: !p.gateway})
		}
		if !m.machine.Look(m.now, all) {
			break
		}
		m.push()
	}
	m.check()
}

// take has a proxy put into force what it was sent.
func (m *mesh) take(p *peer) {
	if p.stuck || p.refuses || !p.connected || p.owes == 0 {
		return
	}
	p.runs, p.owes = p.next, 0
	m.look()
}

// check holds that every client reaches every server, those excepted.
func (m *mesh) check() {
	m.t.Helper()
	for _, c := range m.peers {
		for _, s := range m.peers {
			if m.excepted[c.id] || m.excepted[s.id] || s.gateway {
				continue
			}
			accepted := []plan{m.plans[s.runs.Wanted]}
			for _, g := range s.runs.Accepted {
				accepted = append(accepted, m.plans[g])
			}
			if call := m.plans[c.runs.Clients].call(); !takes(accepted, call) {
				m.t.Fatalf("client %s calls by %+v of generation %d, server %s takes %+v of %+v; in force %+v", c.id, call, c.runs.Clients, s.id, accepted, s.runs, m.machine.InForce())
			}
		}
	}
}

// pass lets time go by.
func (m *mesh) pass(d time.Duration) {
	m.now = m.now.Add(d)
	m.look()
}

// restart has another controller take over, with what was kept and the newest of what was wanted. Proxies run what they ran.
func (m *mesh) restart() {
	m.machine = New(m.limits, m.kept.Clients, m.kept.Former)
	m.change = 0
	for _, p := range m.peers {
		p.connected = false
	}
	m.machine.Want(m.now, m.newest, effect(m.plans[m.newest], m.plans[m.kept.Clients]))
	m.push()
	m.look()
}

// connect brings a proxy back, which runs what it ran.
func (m *mesh) connect(p *peer) {
	p.connected, p.owes = true, 1
	m.send(p)
	m.look()
}

func (m *mesh) status(step Step, awaited, without []string) {
	m.t.Helper()
	got := m.machine.Status(m.now)
	if got.Step != step || !slices.Equal(got.Awaited, awaited) || !slices.Equal(got.Without, without) {
		m.t.Errorf("status %+v, want %s, awaited %v, without %v", got, step, awaited, without)
	}
}

func TestServersThenClientsThenServers(t *testing.T) {
	m := newMesh(t, plan{"STRICT", 80}, "a", "b")
	a, b := m.peers[0], m.peers[1]
	m.want(plan{"DISABLE", 80})
	m.status(Accepting, []string{"a", "b"}, nil)
	m.take(a)
	m.status(Accepting, []string{"b"}, nil)
	m.take(b)
	m.status(Switching, []string{"a", "b"}, nil)
	if got := m.machine.InForce(); got.Clients != 2 || got.Wanted != 2 || !slices.Equal(got.Accepted, []Generation{1}) {
		t.Errorf("in force while clients switch: %+v", got)
	}
	m.take(b)
	m.take(a)
	m.status(Settled, nil, nil)
	if got := m.machine.InForce(); got.Clients != 2 || got.Wanted != 2 || got.Accepted != nil {
		t.Errorf("in force at the end: %+v", got)
	}
}

func TestWhatConcernsOneEndIsNotStaged(t *testing.T) {
	m := New(Limits{Answer: limit}, 1, 0)
	m.Pushed(1)
	m.Want(time.Unix(0, 0), 2, Alone)
	if got := m.InForce(); got.Clients != 2 || got.Wanted != 2 || got.Accepted != nil {
		t.Errorf("in force %+v", got)
	}
	// In the middle of a change, clients have it at once as well, and what they leave is accepted as long as before.
	m.Want(time.Unix(0, 0), 3, Replaces)
	m.Pushed(2)
	if !m.Look(time.Unix(0, 0), nil) {
		t.Error("nobody is there, and still waited for")
	}
	m.Pushed(3)
	m.Want(time.Unix(0, 0), 4, Alone)
	if got := m.InForce(); got.Clients != 4 || got.Wanted != 4 || !slices.Equal(got.Accepted, []Generation{2}) {
		t.Errorf("in force %+v", got)
	}
}

func TestWhatIsOnlyAddedIsNotTakenBack(t *testing.T) {
	m := newMesh(t, plan{"STRICT", 80}, "a")
	m.want(plan{"PERMISSIVE", 80})
	m.status(Accepting, []string{"a"}, nil)
	m.take(m.peers[0])
	m.status(Settled, nil, nil)
}

func TestGatewaysAreClientsOnly(t *testing.T) {
	m := newMesh(t, plan{"STRICT", 80}, "a", "gateway")
	a, gateway := m.peers[0], m.peers[1]
	m.want(plan{"DISABLE", 80})
	m.status(Accepting, []string{"a"}, nil)
	m.take(a)
	m.status(Switching, []string{"a", "gateway"}, nil)
	m.take(a)
	m.status(Switching, []string{"gateway"}, nil)
	// Until it has left a generation, that one is accepted, and the next one waits.
	m.want(plan{"DISABLE", 90})
	m.take(a)
	m.status(Switching, []string{"gateway"}, nil)
	m.take(gateway)
	m.take(a)
	m.take(gateway)
	m.take(a)
	m.status(Settled, nil, nil)
}

func TestTheLimitIsForEachProxyAndSaid(t *testing.T) {
	m := newMesh(t, plan{"DISABLE", 80}, "a", "dead")
	a, dead := m.peers[0], m.peers[1]
	dead.stuck = true
	m.want(plan{"STRICT", 80})
	m.take(a)
	m.pass(limit - time.Second)
	m.status(Accepting, []string{"dead"}, nil)
	if got := m.machine.Status(m.now).Look; !got.Equal(m.now.Add(time.Second)) {
		t.Errorf("to be looked at again at %v, want in a second", got)
	}
	m.excepted["dead"] = true
	m.pass(time.Second)
	m.status(Switching, []string{"a"}, []string{"dead"})
	m.take(a)
	m.status(Settled, nil, []string{"dead"})
	// The next change does not wait for it again.
	m.want(plan{"STRICT", 90})
	m.take(a)
	m.take(a)
	m.status(Settled, nil, []string{"dead"})
	// Once it answers, it is waited for as any other.
	dead.stuck = false
	m.take(dead)
	m.excepted["dead"] = false
	m.want(plan{"DISABLE", 80})
	m.take(a)
	m.status(Accepting, []string{"dead"}, nil)
}

func TestSomeLagBehindTheirAnswers(t *testing.T) {
	m := New(Limits{Answer: limit, Connect: time.Hour}, 1, 0)
	m.Want(time.Unix(0, 0), 2, Replaces)
	m.Pushed(1)
	now := time.Unix(0, 0)
	slow := func(owes int64) []Proxy {
		return []Proxy{{ID: "a", Owes: owes, Serves: true, Lag: time.Second}, {ID: "gateway", Lag: time.Minute}}
	}
	for _, c := range []struct {
		after time.Duration
		owes  int64
		want  bool
	}{{0, 1, false}, {time.Second, 0, false}, {time.Second / 2, 1, false}, {time.Second, 0, false}, {time.Second - 1, 0, false}, {1, 0, true}} {
		now = now.Add(c.after)
		if got := m.Look(now, slow(c.owes)); got != c.want {
			t.Fatalf("after %s: %v", now.Sub(time.Unix(0, 0)), got)
		}
	}
	// As clients, the slowest of all counts, and then the connections that it was about to make.
	m.Pushed(2)
	if m.Look(now, slow(0)) || !m.Status(now).Look.Equal(now.Add(time.Hour+time.Minute)) {
		t.Errorf("to be looked at again at %v", m.Status(now).Look)
	}
	if !m.Look(now.Add(time.Hour+time.Minute), slow(0)) || m.Status(now).Step != Settled {
		t.Errorf("%+v", m.Status(now))
	}
}

// Whoever wants something else every moment keeps no change from clients for ever, neither while servers are prepared nor while clients
// leave what they went by.
func TestNobodyKeepsChangesBack(t *testing.T) {
	limits := Limits{Answer: limit, Anew: limit, Connect: 10 * time.Second}
	m := New(limits, 1, 0)
	m.Pushed(1)
	live := []Proxy{{ID: "a", Serves: true, Lag: time.Second}}
	start := time.Unix(0, 0)
	moved, left := start, start
	const every = time.Second / 2
	for g, now := Generation(2), start; now.Sub(start) < 5*time.Minute; g, now = g+1, now.Add(every) {
		m.Want(now, g, Replaces)
		m.Pushed(int64(g))
		was := m.InForce()
		for m.Look(now, live) {
			m.Pushed(int64(g))
		}
		is := m.InForce()
		if is.Clients != was.Clients {
			moved = now
		}
		if is.Former != was.Former {
			left = now
		}
		if len(is.Accepted) > 2 {
			t.Fatalf("servers accept %d further generations", len(is.Accepted))
		}
		for name, since := range map[string]time.Time{"clients go by the same": moved, "the former one is accepted": left} {
			// The steps, each with what lags, and as often as somebody looks.
			if bound := limits.Anew + limits.Connect + 2*time.Second + 4*every; now.Sub(since) > bound {
				t.Fatalf("%s for %s, which is more than %s: %+v", name, now.Sub(since), bound, is)
			}
		}
	}
}

func TestOneThatRefusesIsWaitedForUntilTheLimit(t *testing.T) {
	m := newMesh(t, plan{"STRICT", 80}, "a", "b")
	m.peers[1].refuses = true
	m.want(plan{"DISABLE", 80})
	m.take(m.peers[0])
	m.take(m.peers[1])
	m.status(Accepting, []string{"b"}, nil)
	// What mends it ends the wait.
	m.peers[1].refuses = false
	m.take(m.peers[1])
	m.status(Switching, []string{"a", "b"}, nil)
}

func TestOneThatIsGoneIsNotWaitedFor(t *testing.T) {
	m := newMesh(t, plan{"STRICT", 80}, "a", "b")
	m.want(plan{"DISABLE", 80})
	m.take(m.peers[0])
	// It lost its stream, and runs what it has.
	m.peers[1].connected = false
	m.look()
	m.status(Accepting, []string{"b"}, nil)
	m.pass(limit / 2)
	m.connect(m.peers[1])
	m.status(Accepting, []string{"b"}, nil)
	// Its workload was deleted.
	m.peers = m.peers[:1]
	m.look()
	m.status(Switching, []string{"a"}, nil)
}

func TestAChangeBackInTheMiddle(t *testing.T) {
	m := newMesh(t, plan{"STRICT", 80}, "a", "b")
	a, b := m.peers[0], m.peers[1]
	// While servers are being prepared, no client has moved: nothing is to be waited for.
	m.want(plan{"DISABLE", 80})
	m.take(a)
	m.want(plan{"STRICT", 80})
	m.status(Settled, nil, nil)
	m.take(a)
	m.take(b)
	// While clients switch, some are here and some there.
	m.want(plan{"DISABLE", 80})
	m.take(a)
	m.take(b)
	m.take(a)
	m.want(plan{"STRICT", 80})
	if got := len(m.machine.InForce().Accepted); got != 2 {
		t.Errorf("servers accept %d further generations, want both that clients may go by", got)
	}
	m.take(a)
	m.take(b)
	m.take(a)
	m.take(b)
	m.take(a)
	m.take(b)
	m.status(Settled, nil, nil)
}

func TestARestartInTheMiddle(t *testing.T) {
	for _, before := range []int{0, 1, 2, 3} {
		t.Run(fmt.Sprint(before), func(t *testing.T) {
			m := newMesh(t, plan{"STRICT", 80}, "a", "b")
			m.want(plan{"DISABLE", 90})
			for i := range before {
				m.take(m.peers[i%2])
			}
			m.restart()
			if step := m.machine.Status(m.now).Step; step == Settled {
				t.Error("it is forgotten that a change is under way")
			}
			for range 3 {
				for _, p := range m.peers {
					if !p.connected {
						m.connect(p)
					}
					m.take(p)
				}
			}
			m.status(Settled, nil, nil)
		})
	}
}

// TestNobodyIsRefused has everything happen at random: no client may ever call a server in a way that it does not take.
func TestNobodyIsRefused(t *testing.T) {
	settled := 0
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(1, seed))
		m := newMesh(t, plan{"PERMISSIVE", 80}, "a", "b", "gateway", "d")
		// Every other one goes on to what was wanted before, whatever is wanted meanwhile.
		m.limits.Anew *= time.Duration(seed % 2)
		m.machine = New(m.limits, 1, 0)
		m.machine.Pushed(m.change)
		broken := m.peers[3]
		m.excepted[broken.id] = true
		for range 400 {
			p := m.peers[random.IntN(len(m.peers))]
			switch n := random.IntN(100); {
			case n < 6:
				m.want(plan{[]string{"STRICT", "PERMISSIVE", "DISABLE"}[random.IntN(3)], []int{80, 90}[random.IntN(2)]})
			case n < 8:
				m.restart()
			case n < 12:
				p.connected = false
				m.look()
			case n < 14:
				broken.stuck, broken.refuses = random.IntN(2) == 0, random.IntN(2) == 0
			case n < 60:
				if p.connected {
					m.take(p)
				} else {
					m.connect(p)
				}
			default:
				// In 400 rounds this is much less than the limit.
				m.pass(time.Millisecond)
			}
			if m.machine.Status(m.now).Step == Settled {
				settled++
			}
		}
		// What still owes something when all is quiet has the limit.
		broken.stuck, broken.refuses = false, false
		for range 9 {
			for _, p := range m.peers {
				if !p.connected {
					m.connect(p)
				}
				m.take(p)
			}
		}
		m.status(Settled, nil, nil)
		for _, p := range m.peers {
			if p.runs.Clients != m.newest || p.runs.Wanted != m.newest || p.runs.Accepted != nil {
				t.Fatalf("%s ends with %+v, want generation %d alone", p.id, p.runs, m.newest)
			}
		}
	}
	if settled < 300*400/20 {
		t.Errorf("settled in %d rounds only: this proves little", settled)
	}
}
