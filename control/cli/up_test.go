package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/federation"
	"heddle.io/heddle/control/server/client"
)

// upFlags are the flags of a command line.
func upFlags(t *testing.T, args string) upOptions {
	t.Helper()
	var o upOptions
	flags := pflag.NewFlagSet("up", pflag.ContinueOnError)
	o.register(flags)
	if err := flags.Parse(strings.Fields(args)); err != nil {
		t.Fatal(err)
	}
	o.given = flags.Changed
	return o
}

func TestFlagsThatNeverWork(t *testing.T) {
	for args, want := range map[string]string{
		"--ip-family ipv5":                "ipv4 or ipv6",
		"--advertise here":                "IP address",
		"--advertise 10.0.0.1 --isolated": "contradict",
		"--token hdl1.x":                  "--join",
		"--stage-limit 10ms":              "at least 1s",
		"--capture iptables":              "use nftables, ebpf or auto",
		"--isolated --ip-family ipv6":     "",
		"--workload-key-type rsa-1024":    "rsa-2048",
		"--regex-engine re2":              "portable or hyperscan",
		"--ca-cert a":                     "go together",
		"--ca-key a":                      "go together",
		"--ca-cert a --ca-key b --join c": "contradict",
		"--join a --token b":              "",
	} {
		if err := upFlags(t, args).check(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestOptionsAreSettledByFlagsAndWhatWasKept(t *testing.T) {
	here, envoy := netip.MustParseAddr("192.168.1.10"), filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(envoy, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	six := netip.MustParseAddr("fd00::10")
	m := machine{
		private: func(f cluster.Family) (netip.Addr, error) {
			if f == cluster.IPv6 {
				return netip.Addr{}, nil
			}
			return here, nil
		},
		local: func(a netip.Addr) (bool, error) { return a == here || a == six, nil },
	}
	wan := netip.MustParseAddr("198.18.0.7")
	isolated := cluster.Options{Family: cluster.IPv4, Isolated: true, Advertise: wan, ExposeIngress: true, EastWestGateways: 2}
	shared := cluster.Options{Family: cluster.IPv4, Advertise: here, EastWestGateways: 2}
	gone := shared
	gone.Advertise = netip.MustParseAddr("192.168.1.99")
	named := shared
	named.ExposeIngress = true
	lonely := cluster.Options{Family: cluster.IPv6}
	away := cluster.Options{Family: cluster.IPv6, Advertise: netip.MustParseAddr("fd00::99"), EastWestGateways: 2}
	withEnvoy := isolated
	withEnvoy.GatewayProxy = envoy
	fresh := cluster.Options{Family: cluster.IPv4}
	with := func(o cluster.Options, change func(*cluster.Options)) cluster.Options { change(&o); return o }
	// As versions before allowed it.
	exposed := with(isolated, func(o *cluster.Options) { o.Etcd.Key, o.SecretsKeyFile = "/etc/etcd.key", "/etc/secrets.key" })
	for name, c := range map[string]struct {
		args          string
		before        *cluster.Options
		running       bool
		want          cluster.Options
		contradiction string
	}{
		"fresh on a shared host":      {"", nil, false, shared, ""},
		"fresh without an address":    {"--ip-family ipv6", nil, false, lonely, ""},
		"fresh with an address":       {"--advertise 192.168.1.10", nil, false, named, ""},
		"fresh with IPv6":             {"--ip-family ipv6 --advertise fd00::10", nil, false, cluster.Options{Family: cluster.IPv6, Advertise: six, ExposeIngress: true, EastWestGateways: 2}, ""},
		"fresh and hidden":            {"--advertise=", nil, false, fresh, ""},
		"fresh and isolated":          {"--isolated", nil, false, with(isolated, func(o *cluster.Options) { o.Advertise = netip.Addr{} }), ""},
		"address of another family":   {"--ip-family ipv6 --advertise 192.168.1.10", nil, false, fresh, "--ip-family"},
		"address of another machine":  {"--advertise 192.0.2.1", nil, false, fresh, "no interface has it"},
		"program that does not exist": {"--gateway-proxy /does/not/exist", nil, false, fresh, "/does/not/exist"},

		"repair without flags":                {"", &isolated, false, isolated, ""},
		"repair with the same flags":          {"--isolated --ip-family ipv4", &isolated, false, isolated, ""},
		"repair while it runs":                {"--isolated", &isolated, true, isolated, ""},
		"found address has moved":             {"", &gone, false, shared, ""},
		"found address is away, no other":     {"", &away, false, away, ""},
		"hidden stays hidden":                 {"", &lonely, false, lonely, ""},
		"another proxy for gateways":          {"--gateway-proxy " + envoy, &isolated, false, withEnvoy, ""},
		"and back":                            {"--gateway-proxy=", &withEnvoy, false, isolated, ""},
		"capture by programs":                 {"--capture ebpf", &isolated, false, with(isolated, func(o *cluster.Options) { o.Capture = cluster.CaptureEBPF }), ""},
		"capture by rules":                    {"--capture nftables", &isolated, false, isolated, ""},
		"another capture while it runs":       {"--capture auto", &isolated, true, fresh, "--keep-data"},
		"another limit for stages":            {"--stage-limit 5s", &isolated, false, with(isolated, func(o *cluster.Options) { o.StageLimit = 5 * time.Second }), ""},
		"a limit while it runs":               {"--stage-limit 5s", &isolated, true, fresh, "--keep-data"},
		"another address":                     {"--advertise 192.168.1.10", &shared, false, named, ""},
		"other family":                        {"--ip-family ipv6", &isolated, false, fresh, "made with ipv4"},
		"isolated now":                        {"--isolated", &shared, false, fresh, "made without isolation"},
		"not isolated any more":               {"--isolated=false", &isolated, false, fresh, "made isolated"},
		"address of an isolated one":          {"--advertise 192.168.1.10", &isolated, false, fresh, "address of its own"},
		"keys of another kind":                {"--workload-key-type rsa-2048", &isolated, false, with(isolated, func(o *cluster.Options) { o.WorkloadKeyType = "rsa-2048" }), ""},
		"and the default again":               {"--workload-key-type ecdsa-p256", ptr(with(isolated, func(o *cluster.Options) { o.WorkloadKeyType = "rsa-2048" })), false, isolated, ""},
		"another engine for expressions":      {"--regex-engine hyperscan", &isolated, false, with(isolated, func(o *cluster.Options) { o.RegexEngine = "hyperscan" }), ""},
		"and the portable one again":          {"--regex-engine portable", ptr(with(isolated, func(o *cluster.Options) { o.RegexEngine = "hyperscan" })), false, isolated, ""},
		"an engine while it runs":             {"--regex-engine hyperscan", &isolated, true, fresh, "--keep-data"},
		"keys of Secrets where programs look": {"--secrets-key-file /etc/secrets.key", &isolated, false, fresh, "move the file into a directory of its own"},
		"which were kept":                     {"", ptr(exposed), false, exposed, ""},
		"which were kept, and it runs":        {"", ptr(exposed), true, exposed, ""},
		"which are given again":               {"--secrets-key-file /etc/secrets.key", ptr(exposed), false, fresh, "--secrets-key-file /etc/secrets.key"},
		"a proxy beside keys that were kept":  {"--gateway-proxy " + envoy, ptr(with(isolated, func(o *cluster.Options) { o.SecretsKeyFile = filepath.Join(filepath.Dir(envoy), "k") })), false, fresh, "--secrets-key-file"},
		"keys while it runs":                  {"--workload-key-type rsa-2048", &isolated, true, fresh, "--keep-data"},
		"proxy while it runs":                 {"--gateway-proxy " + envoy, &isolated, true, fresh, "--keep-data"},
		"address while it runs":               {"--advertise 192.168.1.10", &shared, true, fresh, "--keep-data"},
		"named address of another machine":    {"", ptr(with(named, func(o *cluster.Options) { o.Advertise = netip.MustParseAddr("192.0.2.1") })), false, fresh, "no interface has it"},
		"found address has moved, it's up":    {"", &gone, true, gone, ""},
		"isolated, the address is reserved":   {"", ptr(with(isolated, func(o *cluster.Options) { o.Advertise = netip.Addr{} })), false, with(isolated, func(o *cluster.Options) { o.Advertise = netip.Addr{} }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := fresh
			if c.before != nil {
				before = *c.before
			}
			got, err := upFlags(t, c.args).settle(cluster.Cluster{Name: "c1", DataRoot: "/data"}, before, c.before != nil, c.running, m)
			if c.contradiction != "" {
				if err == nil || !strings.Contains(err.Error(), c.contradiction) {
					t.Fatalf("%+v %v, want an error with %q", got, err, c.contradiction)
				}
				return
			}
			if err != nil || got != c.want {
				t.Fatalf("%+v %v, want %+v", got, err, c.want)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

// Proxies that an agent left running would not look for what bypasses TCP.
func TestTheBypassIsNotTurnedOnUnderProxiesThatRunWithout(t *testing.T) {
	c := cluster.Cluster{Name: "c1", DataRoot: t.TempDir(), RunRoot: t.TempDir()}
	m := machine{private: func(cluster.Family) (netip.Addr, error) { return netip.Addr{}, nil }}
	without := cluster.Options{Family: cluster.IPv4}
	with := without
	with.TCPBypass = true
	if got, err := upFlags(t, "--tcp-bypass").settle(c, without, true, false, m); err != nil || !got.TCPBypass {
		t.Errorf("nothing runs: %+v %v", got, err)
	}
	if err := os.Mkdir(c.Run(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := upFlags(t, "--tcp-bypass").settle(c, without, true, false, m); err == nil || !strings.Contains(err.Error(), "--keep-data") {
		t.Errorf("its proxies run: %v", err)
	}
	for args, before := range map[string]cluster.Options{"--tcp-bypass": with, "": without, "--tcp-bypass=false": with} {
		if _, err := upFlags(t, args).settle(c, before, true, false, m); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestWhoCannotJoin(t *testing.T) {
	c := cluster.Cluster{Name: "c2", DataRoot: t.TempDir(), RunRoot: t.TempDir()}
	try := func(args string, agent int, membership federation.Membership) error {
		b := &bringing{cluster: c, flags: upFlags(t, args), agent: agent, membership: membership, member: membership.Primary != ""}
		if b.flags.join != "" {
			var err error
			if b.primary, err = primaryAddress(t.Context(), b.flags.join, cluster.Options{}, nil); err != nil {
				t.Fatal(err)
			}
		}
		return b.checkJoin()
	}
	member := federation.Membership{Primary: "c1", Address: "198.18.0.2:15443"}
	for name, test := range map[string]struct {
		args   string
		agent  int
		member federation.Membership
		want   string
	}{
		"not asked for":             {"", 0, federation.Membership{}, ""},
		"with a token":              {"--join 198.18.0.2 --token x", 0, federation.Membership{}, ""},
		"without a token":           {"--join 198.18.0.2", 0, federation.Membership{}, "heddle cluster token"},
		"member without a token":    {"--join 198.18.0.9", 0, member, ""},
		"running member, again":     {"--join 198.18.0.2", 7, member, ""},
		"running member, elsewhere": {"--join 198.18.0.9", 7, member, "cluster join 198.18.0.9"},
		"running":                   {"--join 198.18.0.2 --token x", 7, federation.Membership{}, "cluster join 198.18.0.2"},
	} {
		err := try(test.args, test.agent, test.member)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(c.Data(), "ca"), 0o700); err != nil {
		t.Fatal(err)
	}
	var problem *client.Problem
	if err := try("--join 198.18.0.2 --token x", 0, federation.Membership{}); !errors.As(err, &problem) || !strings.Contains(problem.Remedy, "cluster join") {
		t.Errorf("a cluster with a root of its own: %v", err)
	}
}

func TestAddressesThatAreJoined(t *testing.T) {
	lookup := func(_ context.Context, network, host string) ([]netip.Addr, error) {
		if host != "host-a" {
			return nil, errors.New("no such host")
		}
		return map[string][]netip.Addr{"ip4": {netip.MustParseAddr("192.168.1.10")}, "ip6": {netip.MustParseAddr("fd00::10")}}[network], nil
	}
	shared, four, six := cluster.Options{Family: cluster.IPv4}, cluster.Options{Family: cluster.IPv4, Isolated: true}, cluster.Options{Family: cluster.IPv6, Isolated: true}
	for _, c := range []struct {
		in      string
		options cluster.Options
		want    string
		fails   string
	}{
		{"198.18.0.2", shared, "198.18.0.2:15443", ""},
		{"host-a", shared, "host-a:15443", ""},
		{"2001:db8::2", shared, "[2001:db8::2]:15443", ""},
		{"host-a:0", shared, "", "not an address"},
		{"198.18.0.2:99", four, "198.18.0.2:99", ""},
		{"[2001:db8::2]:99", six, "[2001:db8::2]:99", ""},
		{"host-a", four, "192.168.1.10:15443", ""},
		{"host-a:99", six, "[fd00::10]:99", ""},
		{"host-b", four, "", "no such host"},
	} {
		got, err := primaryAddress(t.Context(), c.in, c.options, lookup)
		if got != c.want || (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %s %v, want %s %s", c.in, got, err, c.want, c.fails)
		}
	}
}

func TestTheAgentOfAnIsolatedClusterStartsInside(t *testing.T) {
	b := &bringing{cluster: cluster.Cluster{Name: "c1"}, flags: upFlags(t, "--foreign-proxy --proxy envoy"), self: "/bin/heddle"}
	plain := []string{"/bin/heddle", "agent", "run", "--name", "c1", "--proxy", "envoy", "--foreign-proxy"}
	if got := b.agentCommandLine(); !slices.Equal(got, plain) {
		t.Error(got)
	}
	b.options.Isolated = true
	if got := b.agentCommandLine(); !slices.Equal(got, append([]string{"/bin/heddle", "agent", "enter", "--name", "c1", "--"}, plain...)) {
		t.Error(got)
	}
}

func TestAPIAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "none": "", "6443": "127.0.0.1:6443", ":6443": "127.0.0.1:6443", "192.0.2.10:6443": "192.0.2.10:6443", "0.0.0.0:1": "0.0.0.0:1", "[2001:db8::1]:6443": "[2001:db8::1]:6443",
		"0": "error", "65536": "error", "host:6443": "error", "192.0.2.10": "error", "192.0.2.10:0": "error", "-1": "error",
	} {
		got, err := apiAddress(text, cluster.IPv4)
		if (err != nil) != (want == "error") || err == nil && want != "" && got.String() != want || want == "" && got.IsValid() {
			t.Errorf("%q: %v %v", text, got, err)
		}
	}
	if got, err := apiAddress("6443", cluster.IPv6); err != nil || got.String() != "[::1]:6443" {
		t.Errorf("%v %v", got, err)
	}
}

// Another file for the keys of Secrets is taken where it has them already; a program that others can write is not run.
func TestWhereKeysOfSecretsAre(t *testing.T) {
	c := cluster.Cluster{Name: "keys", RunRoot: t.TempDir(), DataRoot: t.TempDir()}
	other, program, loose := filepath.Join(t.TempDir(), "other.key"), filepath.Join(t.TempDir(), "kms"), filepath.Join(t.TempDir(), "loose")
	write := func(path string, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("#!/bin/sh\n"), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	write(program, 0o755)
	write(loose, 0o777)
	settle := func(key, kms string, kept bool) (cluster.Options, error) {
		o := upOptions{secretsKey: key, kmsCommand: kms, given: func(flag string) bool {
			return flag == "secrets-key-file" && key != "" || flag == "kms-command" && kms != ""
		}}
		return o.sealing(c, cluster.Options{KMSCommand: "/before"}, kept)
	}
	if got, err := settle(other, program, false); err != nil || got.SecretsKeyFile != other || got.KMSCommand != program {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := settle("", "none", true); err != nil || got.SecretsKeyFile != "" || got.KMSCommand != "" {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := settle("", "", true); err != nil || got.KMSCommand != "/before" {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := settle("", loose, true); err == nil || !strings.Contains(fmt.Sprintf("%+v", err), "only root can write") {
		t.Errorf("%v", err)
	}
	write(c.SecretsKey(cluster.Options{}), 0o600)
	if _, err := settle(other, "", true); err == nil || !strings.Contains(fmt.Sprintf("%+v", err), "mv "+c.SecretsKey(cluster.Options{})+" "+other) {
		t.Errorf("keys were left behind: %v", err)
	}
	write(other, 0o600)
	if got, err := settle(other, "", true); err != nil || got.SecretsKeyFile != other {
		t.Errorf("%+v %v", got, err)
	}
}

// The log's level is what HEDDLE_LOG says, and what is no level is not passed over.
func TestLogLevel(t *testing.T) {
	for text, want := range map[string]slog.Level{"": slog.LevelInfo, "debug": slog.LevelDebug, "WARN": slog.LevelWarn} {
		t.Setenv("HEDDLE_LOG", text)
		if got, err := logLevel(); err != nil || got != want {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	t.Setenv("HEDDLE_LOG", "loud")
	if _, err := logLevel(); err == nil || !strings.Contains(err.Error(), `HEDDLE_LOG is "loud": use debug`) {
		t.Errorf("got %v", err)
	}
	var out bytes.Buffer
	(&session{err: &out}).log().Debug("unseen")
	if got := out.String(); !strings.Contains(got, "level=WARN") || strings.Contains(got, "unseen") {
		t.Errorf("the log begins with %s", got)
	}
}
