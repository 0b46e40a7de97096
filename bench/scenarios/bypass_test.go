package scenarios

import (
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/bench/load"
)

func TestARunThatDoesNotMeasureTheBypass(t *testing.T) {
	for name, c := range map[string]struct {
		observation
		messages int
		want     string
	}{
		"without the bypass":        {observation{load: load.Result{Requests: 1000, Errors: 1}}, 0, ""},
		"with it":                   {observation{load: load.Result{Requests: 1000}, bypassed: 3990}, 4, ""},
		"most messages went by TCP": {observation{load: load.Result{Requests: 1000}, bypassed: 3000}, 4, "3.00 messages of a request bypassed TCP, of 4"},
		"errors":                    {observation{load: load.Result{Requests: 1000, Errors: 2}}, 0, "measures nothing"},
		"no answer":                 {observation{}, 0, "measures nothing"},
	} {
		err := c.check(c.messages)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestProcessorTimeOfARequest(t *testing.T) {
	o := observation{load: load.Result{Requests: 1000}, client: 9 * time.Millisecond, clientSidecar: 14 * time.Millisecond, serverSidecar: 13 * time.Millisecond,
		server: 8 * time.Millisecond, bypassed: 4000, switches: 1500}
	got := o.figures()
	for figure, want := range map[string]float64{
		"client_us": 9, "client_sidecar_us": 14, "server_sidecar_us": 13, "server_us": 8, "cpu_us_per_request": 44, "direct_messages": 4, "context_switches": 1.5,
	} {
		if got[figure] != want {
			t.Errorf("%s = %v, want %v", figure, got[figure], want)
		}
	}
}
