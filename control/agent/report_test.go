package agent

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"heddle.io/heddle/control/server/client"
)

// hearer is a controller that takes reports, and knows the last one.
type hearer struct {
	knows client.Report
	// refuse is answered to a whole report, unknown to one that says that nothing changed; 0 for none.
	refuse, unknown int
	// said is what was heard: "unchanged", or how many replicas.
	said  []string
	bytes int64
}

func (l *hearer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.bytes += r.ContentLength
	status := 0
	if r.URL.Path == "/heddle/v1/report/unchanged" {
		l.said = append(l.said, "unchanged")
		var u client.Unchanged
		if err := json.NewDecoder(r.Body).Decode(&u); err != nil || u.Agent != l.knows.Agent || u.Revision != l.knows.Revision {
			status = http.StatusConflict
		}
		if l.unknown != 0 {
			status = l.unknown
		}
	} else {
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
	hears("a replica is another", true, "3")
	hears("nothing changed since", true, "unchanged")
	l.knows = client.Report{}
	hears("another controller", true, "unchanged", "3")
	l.unknown = http.StatusNotFound
	hears("a controller that does not know the question", true, "unchanged", "3")
	l.unknown = http.StatusServiceUnavailable
	hears("a controller that is away", false, "unchanged")
	l.unknown = 0
	hears("and is back", true, "unchanged")
	phase("again")
	l.refuse = http.StatusServiceUnavailable
	hears("a report that may not have been taken", false, "3")
	phase("restarting")
	l.refuse = 0
	hears("as it was before that one", true, "3")
	if l.knows.Replicas[1].State.Message != "restarting" {
		t.Errorf("the controller goes by %+v", l.knows.Replicas[1].State)
	}
	// The next agent counts anew, and is not taken for this one.
	before := l.knows.Revision
	a.reported = reported{}
	hears("another agent", true, "3")
	if l.knows.Revision == before {
		t.Error("two agents' reports have one revision")
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
