package load

import (
	"testing"
	"time"
)

func TestParseWrk(t *testing.T) {
	out := `Running 5s test @ http://127.0.0.1:8080/
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   400.00us  100.00us   5.00ms   90.00%
    Req/Sec    70.00k     1.00k   72.00k    90.00%
  Latency Distribution
     50%  410.00us
     75%  500.00us
     90%  600.00us
     99%    1.20ms
  350010 requests in 5.00s, 60.00MB read
  Socket errors: connect 0, read 2, write 0, timeout 1
  Non-2xx or 3xx responses: 10
Requests/sec:  70000.00
`
	r, err := parseWrk(out)
	if err != nil {
		t.Fatal(err)
	}
	want := Result{Requests: 350000, Errors: 13, PerSecond: 70000, P50: 410 * time.Microsecond, P99: 1200 * time.Microsecond}
	if r != want {
		t.Errorf("got %+v, want %+v", r, want)
	}
	if _, err := parseWrk("unable to connect"); err == nil {
		t.Error("output without counts was accepted")
	}
}

func TestParseH2load(t *testing.T) {
	out := `finished in 1.00s
requests: 1000 total, 1000 started, 1000 done, 990 succeeded, 10 failed, 0 errored, 0 timeout
status codes: 990 2xx, 0 3xx, 0 4xx, 10 5xx
`
	r, err := parseH2load(out)
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests != 990 || r.Errors != 10 {
		t.Errorf("got %+v", r)
	}
}
