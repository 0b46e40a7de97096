package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"heddle.io/heddle/control/server/client"
)

// hearer is a controller that takes reports, and knows the last one.
type hearer struct {
	knows client.Report
	// refuse is answered to a report, unknown to one that says that nothing changed, or what did; 0 for none.
	refuse, unknown int
	// said is what was heard: "unchanged", what of how many replicas did, or how many there are.
	said  []string
	bytes int64
}

func (l *hearer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.bytes += r.ContentLength
	status := 0
	switch r.URL.Path {
	case "/heddle/v1/report/unchanged":
		l.said = append(l.said, "unchanged")
		var u client.Unchanged
		if err := json.NewDecoder(r.Body).Decode(&u); err != nil || u.Agent != l.knows.Agent || u.Revision != l.knows.Revision {
			status = http.StatusConflict
		}
		if l.unknown != 0 {
			status = l.unknown
		}
	case "/heddle/v1/report/changes":
		var change client.ReportChange
		if err := json.NewDecoder(r.Body).Decode(&change); err != nil || change.Agent != l.knows.Agent || change.Since != l.knows.Revision {
			status = http.StatusConflict
		}
		l.said = append(l.said, fmt.Sprintf("%d changed, %d gone", len(change.Replicas), len(change.Gone)))
		if l.unknown != 0 {
			status = l.unknown
		}
		if l.refuse != 0 {
			status = l.refuse
		}
		if status == 0 {
			l.take(change)
		}
	default:
		var report client.Report
		if err := json.NewDecoder(r.Body).Decode(&report); err != nil {
			status = http.StatusBadRequest
		}
		l.said = append(l.said, fmt.Sprint(len(report.Replicas)))
		if l.refuse != 0 {
			status = l.refuse
		}
		if status == 0 {
			l.knows = report
		}
	}
	if status != 0 {
		w.WriteHeader(status)
	}
	_, _ = w.Write([]byte("{}"))
}

// take has what changed be known.
func (l *hearer) take(change client.ReportChange) {
	l.knows.Revision = change.Revision
	l.knows.Replicas = slices.DeleteFunc(l.knows.Replicas, func(r client.Replica) bool { return slices.Contains(change.Gone, r.ReplicaName()) })
	for _, now := range change.Replicas {
		at := slices.IndexFunc(l.knows.Replicas, func(r client.Replica) bool { return r.ReplicaName() == now.ReplicaName() })
		if at < 0 {
			l.knows.Replicas = append(l.knows.Replicas, now)
			continue
		}
		l.knows.Replicas[at] = now
	}
}

func hear(tb testing.TB, a *Agent) *hearer {
	tb.Helper()
	l := &hearer{}
	serveAPI(tb, a, l)
	return l
}

// serveAPI is a controller's API for an agent.
func serveAPI(tb testing.TB, a *Agent, api http.Handler) {
	tb.Helper()
	path := a.config.Cluster.APISocket()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}
	socket, err := net.Listen("unix", path)
	if err != nil {
		tb.Fatal(err)
	}
	server := &http.Server{Handler: api}
	go func() { _ = server.Serve(socket) }()
	tb.Cleanup(func() { server.Close() })
}

// What the controller knows is not said again; it is when it does not know it, and whenever that is not certain.
func TestReportSaysWhatDiffers(t *testing.T) {
	a := crowd(t, 3)
	a.knowsWorkloads = true
	l := hear(t, a)
	hears := func(why string, taken bool, want ...string) {
		t.Helper()
		l.said = nil
		if err := a.reportNow(t.Context()); err == nil != taken {
			t.Errorf("%s: %v", why, err)
		}
		if !slices.Equal(l.said, want) {
			t.Errorf("%s: the controller hears %q, want %q", why, l.said, want)
		}
	}
	one := a.deployments["shop/w1"].running["w1-0"]
	phase := func(p string) {
		one.mu.Lock()
		defer one.mu.Unlock()
		one.message = p
	}
	hears("the first time", true, "3")
	hears("nothing changed", true, "unchanged")
	phase("restarting")
	hears("a replica is another", true, "1 changed, 0 gone")
	hears("nothing changed since", true, "unchanged")
	l.knows = client.Report{}
	hears("another controller", true, "unchanged", "3")
	phase("running")
	l.knows = client.Report{}
	hears("another controller, and a change", true, "1 changed, 0 gone", "3")
	l.unknown = http.StatusNotFound
	hears("a controller that does not know the question", true, "unchanged", "3")
	phase("restarting")
	hears("a controller that knows no changes", true, "1 changed, 0 gone", "3")
	l.unknown = http.StatusServiceUnavailable
	hears("a controller that is away", false, "unchanged")
	l.unknown = 0
	hears("and is back", true, "unchanged")
	phase("again")
	l.refuse = http.StatusServiceUnavailable
	hears("a change that may not have been taken", false, "1 changed, 0 gone")
	hears("a report that may not have been taken", false, "3")
	phase("restarting")
	l.refuse = 0
	hears("as it was before that one", true, "3")
	if l.knows.Replicas[1].State.Message != "restarting" {
		t.Errorf("the controller goes by %+v", l.knows.Replicas[1].State)
	}
	delete(a.deployments, "shop/w2")
	phase("ready")
	hears("one is another, and one has gone", true, "1 changed, 1 gone")
	if got := l.knows.Replicas; len(got) != 2 || got[1].State.Message != "ready" {
		t.Errorf("the controller goes by %+v", got)
	}
	// The next agent counts anew, and is not taken for this one.
	before := l.knows.Revision
	a.reported = reported{}
	hears("another agent", true, "2")
	if l.knows.Revision == before {
		t.Error("two agents' reports have one revision")
	}
}

// BenchmarkKick is what it costs beside n others that one replica is another: the names that DNS answers, and the report.
func BenchmarkKick(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		a := crowd(b, n)
		a.knowsWorkloads = true
		for i, r := range a.all() {
			address := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
			r.set(func() { r.address = address })
		}
		names := client.Names{Domain: "cluster.local"}
		for i := range 1000 {
			names.Hosts = append(names.Hosts, client.NamedHost{Name: fmt.Sprintf("s-%d.shop.svc.cluster.local", i), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}})
		}
		if err := os.MkdirAll(filepath.Dir(TablePath(a.config.Cluster)), 0o755); err != nil {
			b.Fatal(err)
		}
		a.setNames(names)
		l := hear(b, a)
		if err := a.reportNow(b.Context()); err != nil {
			b.Fatal(err)
		}
		one := a.all()[7]
		l.bytes = 0
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			one.set(func() { one.restarts = i })
			a.updateDNS()
			if err := a.reportNow(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(l.bytes)/float64(b.N), "sent-B/op")
	})
}

// An application that is asked again and again, and says the same each time, is nothing new; nor is the port it was asked from.
func TestNothingNewIsNotTold(t *testing.T) {
	a := crowd(t, 1)
	r := a.all()[0]
	told := func() bool {
		select {
		case <-a.kick:
			return true
		default:
			return false
		}
	}
	say := func(message string) { r.set(func() { r.appReady, r.message = false, message }) }
	say("not ready: refused")
	if !told() {
		t.Error("that it is not ready is not told")
	}
	r.report()
	if say("not ready: refused"); told() {
		t.Error("the same is told again")
	}
	first := r.report()
	if say("not ready: no route"); !told() {
		t.Error("another reason is not told")
	}
	second := r.report()
	if second == first || second.State.Message != "not ready: no route" || r.report() != second {
		t.Errorf("reported are %+v and %+v", first, second)
	}
	from := func(port int) error {
		return &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: port}, Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 80}, Err: errors.New("reset")}
	}
	if x, y := steady(fmt.Errorf("probe: %w", from(1))), steady(from(2)); x != y || x != "read tcp 10.0.0.2:80: reset" {
		t.Errorf("%q, then %q", x, y)
	}
}

// A second in which nothing happens.
func BenchmarkReport(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		a := crowd(b, n)
		a.knowsWorkloads = true
		l := hear(b, a)
		if err := a.reportNow(b.Context()); err != nil {
			b.Fatal(err)
		}
		l.bytes = 0
		for b.Loop() {
			if err := a.reportNow(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(l.bytes)/float64(b.N), "sent-B/op")
	})
}
