//go:build hostile

package hostile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"heddle.io/heddle/test/hostile/corpus"
	"heddle.io/heddle/test/hostile/upstream"
)

// TestHTTP1 sends the HTTP/1 corpus.
func TestHTTP1(t *testing.T) { testCorpus(t, "http1", drive1) }

// TestHTTP2 sends the HTTP/2 corpus.
func TestHTTP2(t *testing.T) { testCorpus(t, "http2", drive2) }

func testCorpus(t *testing.T, folder string, drive func(string, corpus.Case) (corpus.Observed, error)) {
	cases, err := corpus.Folder(folder)
	if err != nil {
		t.Fatal(err)
	}
	forSubjects(t, true, func(t *testing.T, name string) {
		runLanes(t, startLanes(t, name), cases, func(t *testing.T, l *lane, c corpus.Case) {
			counted(t)
			address := l.at(t, c)
			seen, err := drive(address, c)
			if err != nil {
				t.Fatalf("%s: %v", c.Place, err)
			}
			requests, err := l.settle(address)
			if err != nil {
				t.Errorf("%s: %v", c.Place, err)
			}
			seen.Requests = len(requests)
			judge(t, name, c, seen, requests)
		})
	})
}

// judge holds what was seen against what a case wants.
func judge(t *testing.T, name string, c corpus.Case, seen corpus.Observed, requests []*upstream.Request) {
	t.Helper()
	acceptable, why := c.Want, ""
	if name == "envoy" && c.Envoy != nil {
		acceptable, why = c.Envoy, " ("+c.Reason+")"
	}
	matched := corpus.Match(acceptable, seen)
	if matched == nil {
		t.Errorf("%s: %s: want %v%s, got %v%s", c.Place, c.Name, acceptable, why, seen, describe(requests))
		return
	}
	if name == "heddle" || c.Envoy == nil {
		for _, problem := range violations(c.On, requests) {
			t.Errorf("%s: %s: %s%s", c.Place, c.Name, problem, describe(requests))
		}
	}
	if len(requests) > 0 && !matched.Unchecked {
		for _, problem := range wrongHead(c.Head, requests[0]) {
			t.Errorf("%s: %s: %s%s", c.Place, c.Name, problem, describe(requests))
		}
	}
}

func describe(requests []*upstream.Request) string {
	var out strings.Builder
	for i, r := range requests {
		fmt.Fprintf(&out, "\n    upstream request %d, connection %d: %.300q, body %.100q, trailers %q", i+1, r.Connection, r.Raw, r.Body, r.Trailers)
		if r.Cut != "" {
			fmt.Fprintf(&out, ", cut: %s", r.Cut)
		}
	}
	return out.String()
}

// upgraded is what is no problem in a request for an upgrade.
var upgraded = []string{"hop-by-hop field connection: upgrade", "hop-by-hop field upgrade: websocket"}

// violations are what must never reach an upstream, whatever was sent.
func violations(on string, requests []*upstream.Request) []string {
	var out []string
	for _, r := range requests {
		for _, p := range r.Problems {
			// Where an upgrade is let through, it is the upstream's to take.
			if on == "upgrades" && slices.Contains(upgraded, p) {
				continue
			}
			out = append(out, "the upstream got: "+p)
		}
		if on != "policy" {
			continue
		}
		if servers := upstream.ReadAs(r.Target(), "/admin"); len(servers) > 0 {
			out = append(out, fmt.Sprintf("%q got past the policy and is /admin to %v", r.Target(), servers))
		}
		if servers := upstream.ReadAs(r.Target(), "/ro"); strings.EqualFold(r.Method(), "POST") && len(servers) > 0 {
			out = append(out, fmt.Sprintf("%s %q got past the policy and is POST on /ro to %v", r.Method(), r.Target(), servers))
		}
		if servers := upstream.ReadAs(r.Target(), "/café"); len(servers) > 0 {
			out = append(out, fmt.Sprintf("%q got past the policy and is /café to %v", r.Target(), servers))
		}
		for _, f := range slices.Concat(r.Fields, r.Trailers) {
			if strings.ReplaceAll(f, "_", "-") == "x-role: admin" {
				out = append(out, f+" got past the policy")
			}
		}
		for _, host := range r.Values("host") {
			if name, _, _ := strings.Cut(host, ":"); strings.EqualFold(strings.TrimSuffix(name, "."), "admin.example.com") {
				out = append(out, fmt.Sprintf("the host %q got past the policy", host))
			}
		}
	}
	return out
}

func wrongHead(want corpus.Head, r *upstream.Request) []string {
	var out []string
	if want.Line != "" {
		method, rest, _ := strings.Cut(want.Line, " ")
		target, version, _ := strings.Cut(rest, " ")
		if r.Method() != method || r.Target() != target || !strings.HasSuffix(r.Line, " HTTP/2") && !strings.HasSuffix(r.Line, " "+version) {
			out = append(out, fmt.Sprintf("the upstream got %q, want %q", r.Line, want.Line))
		}
	}
	for _, f := range want.Fields {
		decoded, err := corpus.Bytes(f)
		if err != nil {
			out = append(out, err.Error())
		}
		if !slices.Contains(r.Fields, string(decoded)) {
			out = append(out, fmt.Sprintf("the upstream got no field %q", decoded))
		}
	}
	for _, f := range want.Trailers {
		if r.Cut == "" && !slices.Contains(r.Trailers, f) {
			out = append(out, fmt.Sprintf("the upstream got no trailer %q", f))
		}
	}
	for _, name := range want.Absent {
		for _, f := range append(slices.Clone(r.Fields), r.Trailers...) {
			// A proxy has its own word on the connection to the upstream.
			if strings.HasPrefix(f, name+":") && f != "connection: close" {
				out = append(out, fmt.Sprintf("the upstream got %q", f))
			}
		}
	}
	if want.Body != nil && r.Cut == "" && string(r.Body) != *want.Body {
		out = append(out, fmt.Sprintf("the upstream got the body %.200q, want %.200q", r.Body, *want.Body))
	}
	return out
}
