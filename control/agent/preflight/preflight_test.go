package preflight

import (
	"errors"
	"strings"
	"testing"

	"heddle.io/heddle/control/cluster"
)

func good() Probes {
	none := func() error { return nil }
	return Probes{
		UID: func() int { return 0 }, Kernel: func() (string, error) { return "6.1.0-18-amd64", nil },
		Namespaces: none, NFTables: none, Capture: none, IPv6: none, Forwarding: func(string) error { return nil },
		Hyperscan: func(string) error { return nil },
		Program:   func(name string) (string, error) { return "/bin/" + name, nil },
		Cgroups:   func() ([]string, error) { return []string{"cpu"}, nil },
		Disk:      func(string) (uint64, error) { return 10 << 30, nil },
		Writable:  func(string) error { return nil }, Conflict: func() (string, error) { return "", nil },
		Listen: func(string) error { return nil },
	}
}

var needs = Requirements{Data: "/var/lib/heddle/a", Run: "/run/heddle/a", Proxies: []string{"heddle-proxy"}, Hyperscan: "heddle-proxy", Family: cluster.IPv6, Capture: cluster.CaptureEBPF, Addresses: []string{"10.244.0.1:15053"}}

func TestNothingMissing(t *testing.T) {
	if found := Check(good(), needs); len(found) != 0 {
		t.Fatal(found)
	}
}

func TestEachFindingIsComplete(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		spoil func(*Probes)
		want  string
	}{
		"root":       {func(p *Probes) { p.UID = func() int { return 1000 } }, "sudo"},
		"kernel":     {func(p *Probes) { p.Kernel = func() (string, error) { return "4.19.0", nil } }, "too old"},
		"odd kernel": {func(p *Probes) { p.Kernel = func() (string, error) { return "plan9", nil } }, "unknown"},
		"namespaces": {func(p *Probes) { p.Namespaces = func() error { return broken } }, "namespace"},
		"nftables":   {func(p *Probes) { p.NFTables = func() error { return broken } }, "nf_tables"},
		"nft": {func(p *Probes) {
			p.Program = func(n string) (string, error) {
				if n == "nft" {
					return "", broken
				}
				return n, nil
			}
		}, "apt-get install nftables"},
		"capture": {func(p *Probes) { p.Capture = func() error { return broken } }, "--capture auto"},
		"launcher": {func(p *Probes) {
			p.Program = func(n string) (string, error) {
				if n == "heddle-launch" {
					return "", broken
				}
				return n, nil
			}
		}, "beside heddle"},
		"proxy": {func(p *Probes) {
			p.Program = func(n string) (string, error) {
				if n == "heddle-proxy" {
					return "", broken
				}
				return n, nil
			}
		}, "make build"},
		"hyperscan":  {func(p *Probes) { p.Hyperscan = func(string) error { return broken } }, "apt-get install libhyperscan5"},
		"forwarding": {func(p *Probes) { p.Forwarding = func(string) error { return broken } }, "sysctl"},
		"cgroups":    {func(p *Probes) { p.Cgroups = func() ([]string, error) { return nil, nil } }, "cgroup2"},
		"disk":       {func(p *Probes) { p.Disk = func(string) (uint64, error) { return 1 << 20, nil } }, "free some space"},
		"no IPv6":    {func(p *Probes) { p.IPv6 = func() error { return broken } }, "--ip-family"},
		"read-only":  {func(p *Probes) { p.Writable = func(string) error { return broken } }, "writable"},
		"addresses":  {func(p *Probes) { p.Conflict = func() (string, error) { return "10.244.0.0/16 on flannel.1", nil } }, "flannel.1"},
		"port":       {func(p *Probes) { p.Listen = func(string) error { return broken } }, "ss -lntup"},
	} {
		p := good()
		c.spoil(&p)
		found := Check(p, needs)
		if len(found) == 0 {
			t.Errorf("%s: not found", name)
			continue
		}
		for _, f := range found {
			if f.What == "" || f.Where == "" || f.Why == "" || f.Remedy == "" {
				t.Errorf("%s: incomplete %+v", name, f)
			}
		}
		if !strings.Contains(found[0].Error(), c.want) {
			t.Errorf("%s: %s", name, found[0].Error())
		}
	}
}

func TestOldestKernel(t *testing.T) {
	for release, fine := range map[string]bool{
		"2.6.32-754.el6.x86_64": false, "4.19.0-26-amd64": false, "5.2.21": false, "5.10.0-28-arm64": false, "5.11.22": false,
		"5.12.0": true, "6.1.0-18-amd64": true, "10.0.0": true,
	} {
		p := good()
		p.Kernel = func() (string, error) { return release, nil }
		if found := Check(p, needs); (len(found) == 0) != fine {
			t.Errorf("%s: %v", release, found)
		}
	}
	p := good()
	p.Kernel = func() (string, error) { return "", errors.New("uname is forbidden") }
	if found := Check(p, needs); len(found) != 1 || !strings.Contains(found[0].Error(), "uname is forbidden") {
		t.Errorf("%v", found)
	}
}

// Everything that is missing is told at once, so that one round of repairs is enough.
func TestAllFindingsAtOnce(t *testing.T) {
	broken := errors.New("broken")
	p := good()
	p.Kernel = func() (string, error) { return "4.4.0", nil }
	p.NFTables = func() error { return broken }
	p.Disk = func(string) (uint64, error) { return 0, broken }
	p.Listen = func(string) error { return broken }
	found := Check(p, needs)
	if len(found) != 4 {
		t.Fatalf("%d findings: %v", len(found), found)
	}
	for i, want := range []string{"too old", "nftables", "disk", "taken"} {
		if !strings.Contains(found[i].Error(), want) {
			t.Errorf("%q is not about %q", found[i], want)
		}
	}
}
