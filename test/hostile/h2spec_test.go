//go:build hostile

package hostile

import (
	"context"
	"net"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/hostile/subject"
	"heddle.io/heddle/test/hostile/upstream"
)

// h2specLasts is many times what it takes.
const h2specLasts = 2 * time.Minute

var h2specTotals = regexp.MustCompile(`(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed`)

// TestH2spec runs all of h2spec (https://github.com/summerwind/h2spec) over TLS.
func TestH2spec(t *testing.T) {
	counted(t)
	binary, err := exec.LookPath("h2spec")
	if err != nil {
		t.Fatalf("%v; `make packages` installs it", err)
	}
	address := subject.Address()
	up, err := upstream.NewHTTP1(net.JoinHostPort(address, "20000"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(up.Close)
	p, err := subject.Start(subject.Settings{
		Name: "heddle", Binary: binaries["heddle"], Address: address, Dir: t.TempDir(),
		Listeners: []subject.Listener{{
			Name: "tls", Kind: "plain", Port: 10001, Upstream: net.JoinHostPort(address, "20000"), TLS: true,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), h2specLasts)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "-h", address, "-p", "10001", "-t", "-k").CombinedOutput()
	totals := h2specTotals.FindStringSubmatch(string(out))
	if err != nil || totals == nil {
		t.Fatalf("h2spec: %v\n%s", err, out)
	}
	t.Log(totals[0])
	if totals[1] != totals[2] || totals[1] == "0" {
		t.Errorf("%s, want all to pass:\n%s", totals[0], failures(string(out)))
	}
}

// failures are the part of h2spec's report that repeats what failed.
func failures(report string) string {
	_, failed, found := strings.Cut(report, "Failures:")
	if !found {
		return report
	}
	return failed
}
