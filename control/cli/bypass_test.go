package cli

import (
	"bytes"
	"strings"
	"testing"

	"heddle.io/heddle/control/agent/bypass"
)

// A problem is said first, and what could be read is shown beside it.
func TestWhatTheBypassDoesIsShown(t *testing.T) {
	read := map[string]uint64{"tcp_unread": 3}
	for name, c := range map[string]struct {
		status bypass.Status
		want   []string
		table  bool
	}{
		"off":                {bypass.Status{}, []string{"Off: the cluster was started without --tcp-bypass.\n"}, false},
		"being switched off": {bypass.Status{Attached: true, Fallbacks: read}, []string{"go back to it"}, true},
		"not switched off":   {bypass.Status{Attached: true, Problem: "other maps"}, []string{"To be off, but: other maps"}, false},
		"lacking":            {bypass.Status{Wanted: true, Problem: "no cgroup"}, []string{"Not attached, connections use TCP: no cgroup"}, false},
		"half":               {bypass.Status{Wanted: true, Attached: true, Problem: "no switch", Fallbacks: read}, []string{"Attached, but: no switch"}, true},
		"on": {bypass.Status{Wanted: true, Attached: true, Sockets: 7, MaxSockets: 9, Fallbacks: read, Programs: []bypass.Program{{Name: "closed", ID: 5}},
			Maps: []bypass.Map{{Name: "sockets", ID: 6, MaxEntries: 9, Memory: 4096}}}, []string{"7 of 9", "messages by TCP, tcp_unread", "program closed", "map sockets"}, true},
	} {
		var out bytes.Buffer
		if err := (&session{out: &out}).printBypass(c.status); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q is not in\n%s", name, want, &out)
			}
		}
		if got := strings.Contains(out.String(), "sockets with a place"); got != c.table {
			t.Errorf("%s: the table is there: %v\n%s", name, got, &out)
		}
	}
}
