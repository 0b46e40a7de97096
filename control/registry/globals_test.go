package registry

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var globals = netip.MustParsePrefix("240.240.0.0/16")

func TestGlobalAddressesAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "globals.json")
	g, err := OpenGlobals(path, globals)
	if err != nil {
		t.Fatal(err)
	}
	first, err := g.Assign([]string{"b.acme.demo", "a.acme.demo", "a.acme.demo"})
	if err != nil || len(first) != 2 || first["a.acme.demo"] == first["b.acme.demo"] {
		t.Fatalf("got %v: %v", first, err)
	}
	for host, a := range first {
		if !globals.Contains(a) || a.Less(netip.MustParseAddr("240.240.1.0")) {
			t.Errorf("%s has %s", host, a)
		}
	}
	// A host that was away for a while, and a restart in between, change nothing.
	if _, err := g.Assign([]string{"c.acme.demo"}); err != nil {
		t.Fatal(err)
	}
	if g, err = OpenGlobals(path, globals); err != nil {
		t.Fatal(err)
	}
	again, err := g.Assign([]string{"a.acme.demo", "b.acme.demo"})
	if err != nil || !maps.Equal(first, again) {
		t.Errorf("got %v, had %v: %v", again, first, err)
	}
	if left, err := filepath.Glob(path + ".*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestGlobalAddressesRunOut(t *testing.T) {
	g, err := OpenGlobals(filepath.Join(t.TempDir(), "globals.json"), netip.MustParsePrefix("fd00:240:240::/125"))
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for i := range 6 {
		hosts = append(hosts, fmt.Sprintf("s%d.acme.demo", i))
	}
	if _, err := g.Assign(hosts); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Assign(append(hosts, "more.acme.demo")); !errors.Is(err, ErrAddressesExhausted) {
		t.Errorf("got %v", err)
	}
	// What failed is not kept, and what is gone makes room.
	got, err := g.Assign([]string{"more.acme.demo", hosts[0]})
	if err != nil || len(got) != 2 || got["more.acme.demo"] == got[hosts[0]] {
		t.Errorf("got %v: %v", got, err)
	}
}

func TestGlobalAddressErrors(t *testing.T) {
	for name, c := range map[string]struct{ content, want string }{
		"not JSON":    {"{", "torn"},
		"not address": {`{"addresses":{"a":"x"}}`, "unable to parse IP"},
		"outside":     {`{"addresses":{"a":"10.0.0.1"}}`, "10.0.0.1 of a is outside of 240.240.0.0/16"},
		"twice":       {`{"addresses":{"a":"240.240.1.1","b":"240.240.1.1"}}`, "is also that of"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "globals.json")
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenGlobals(path, globals); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	g, err := OpenGlobals(filepath.Join(t.TempDir(), "missing", "globals.json"), globals)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Assign([]string{"a"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if len(g.hosts) > 0 {
		t.Error("an address that is not on disk was kept")
	}
}
