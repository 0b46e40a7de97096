package cli

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/federation"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/stage"
)

// eastWestGateways is how many run where other clusters can reach them: one may be lost.
const eastWestGateways = 2

// upOptions are the flags of `up`.
type upOptions struct {
	name       string
	proxy      string
	foreign    bool
	foreground bool
	timeout    time.Duration

	isolated     bool
	family       string
	advertise    string
	gatewayProxy string
	join, token  string
	apiAddress   string
	apiClientCA  string
	// caCert and caKey are files with a certificate authority that was made elsewhere.
	caCert, caKey   string
	workloadKeyType string
	privileged      bool
	tcpBypass       bool
	capture         string
	regexEngine     string
	secretsKey      string
	kmsCommand      string
	etcd            cluster.Etcd
	stageLimit      time.Duration
	dependencies    string
	// given says whether the user set a flag.
	given func(flag string) bool
}

func (o *upOptions) register(flags *pflag.FlagSet) {
	flags.StringVar(&o.name, "name", "", `the cluster's name (default "cluster1")`)
	flags.BoolVar(&o.isolated, "isolated", false, "run in a network and a mount namespace of its own, beside other clusters of this machine")
	flags.StringVar(&o.family, "ip-family", "", `addresses of workloads, gateways and links: ipv4 or ipv6 (default "ipv4")`)
	flags.StringVar(&o.advertise, "advertise", "", "this machine's address for other clusters and for the ingress gateway's ports (default: the private address of the default route's interface, without the ingress)")
	flags.StringVar(&o.join, "join", "", "become a member of the mesh whose primary is at this address")
	flags.StringVar(&o.token, "token", "", "the join token, from the primary's 'heddle up' or 'heddle cluster token'")
	flags.StringVar(&o.apiAddress, "api-address", "", "serve the API over TLS here too, for command lines on other machines: PORT (on loopback), ADDRESS:PORT, or none")
	flags.StringVar(&o.apiClientCA, "api-client-ca", "", "a file (PEM) with the authority whose client certificates name users of the API: the common name the user, organizations the groups")
	flags.StringVar(&o.caCert, "ca-cert", "", "a file (PEM) with the mesh's certificate authority, made elsewhere: a root, or an intermediate and its chain up to the root")
	flags.StringVar(&o.caKey, "ca-key", "", "a file (PEM) with the private key of --ca-cert, which others cannot read; it is copied to the cluster's data")
	flags.StringVar(&o.workloadKeyType, "workload-key-type", "", `the keys of workloads' certificates: ecdsa-p256 or rsa-2048 (default "ecdsa-p256")`)
	flags.StringVar(&o.secretsKey, "secrets-key-file", "", "the file with the keys that Secrets are encrypted with, made when it is not there; in a directory of its own, which workloads do not see; down leaves it alone (default: a file in the cluster's data)")
	flags.StringVar(&o.kmsCommand, "kms-command", "", "a program that wraps these keys with a key management service (see the note on secrets at rest), or none")
	flags.DurationVar(&o.stageLimit, "stage-limit", stage.DefaultLimit, "how long a change of what servers accept waits for a proxy that does not take it, before it goes on without")
	flags.StringVar(&o.dependencies, "dependencies", "", `the services that sidecars get where the label heddle.io/dependencies of the namespace says nothing: all, or observed, those that their workload was seen to use (default "all")`)
	flags.StringVar(&o.etcd.Endpoints, "etcd-endpoints", "", "keep objects in an external etcd cluster: its members' client URLs, separated by commas (https://HOST:PORT)")
	flags.StringVar(&o.etcd.CACert, "etcd-cacert", "", "a file (PEM) with the authority of the etcd members' certificates")
	flags.StringVar(&o.etcd.Cert, "etcd-cert", "", "a file (PEM) with the controller's certificate for etcd")
	flags.StringVar(&o.etcd.Key, "etcd-key", "", "a file (PEM) with that certificate's key, in a directory that workloads do not see")
	flags.StringVar(&o.proxy, "proxy", "heddle-proxy", "the proxy program: a path, or a name looked up beside this program and in PATH")
	flags.BoolVar(&o.foreign, "foreign-proxy", false, "the proxy takes a stock Envoy's arguments")
	flags.StringVar(&o.gatewayProxy, "gateway-proxy", "", "another proxy program for the gateways, which takes a stock Envoy's arguments")
	flags.BoolVar(&o.privileged, "privileged-workloads", false, "run workloads without sandboxes, as whichever user they name: each has what that user has on this machine")
	flags.BoolVar(&o.tcpBypass, "tcp-bypass", false, "have what is sent to sidecars of this machine, and what these answer, bypass TCP by eBPF; a workload's annotation heddle.io/tcp-bypass says otherwise (send, both or off): see 'heddle bypass status'")
	flags.StringVar(&o.capture, "capture", "", `how workloads' traffic is brought to their proxies: nftables, ebpf, or auto, which takes ebpf where this machine has what it needs (default "nftables")`)
	flags.StringVar(&o.regexEngine, "regex-engine", "", `who finds regular expressions in heddle-proxy: portable, or hyperscan, which needs Debian's package libhyperscan5 or libvectorscan5 (default "portable")`)
	flags.BoolVar(&o.foreground, "foreground", false, "stay in the foreground, as systemd units want it")
	flags.DurationVar(&o.timeout, "timeout", 90*time.Second, "how long to wait until the cluster is ready")
}

// minStageLimit is the least that may be asked for: proxies take a change within some 100 ms, on a busy machine longer.
const minStageLimit = time.Second

// check finds flags that are wrong whatever there is.
func (o upOptions) check() error {
	if _, err := cluster.ParseFamily(o.family); err != nil {
		return fmt.Errorf("--ip-family: %w", err)
	}
	if o.advertise != "" {
		if _, err := netip.ParseAddr(o.advertise); err != nil {
			return fmt.Errorf("--advertise %q: give an IP address of this machine", o.advertise)
		}
		if o.isolated {
			return errors.New("--advertise and --isolated contradict each other: an isolated cluster has an address of its own")
		}
	}
	if _, err := apiAddress(o.apiAddress, cluster.IPv4); err != nil {
		return err
	}
	if _, err := ca.ParseKeyType(o.workloadKeyType); err != nil {
		return fmt.Errorf("--workload-key-type: %w", err)
	}
	if _, err := cluster.ParseRegexEngine(o.regexEngine); err != nil {
		return fmt.Errorf("--regex-engine: %w", err)
	}
	switch o.dependencies {
	case "", objects.DependenciesAll, objects.DependenciesObserved:
	default:
		return fmt.Errorf("--dependencies %q: use %s or %s", o.dependencies, objects.DependenciesAll, objects.DependenciesObserved)
	}
	switch o.capture {
	case "", cluster.CaptureAuto, cluster.CaptureEBPF, cluster.CaptureNFTables:
	default:
		return fmt.Errorf("--capture %q: use %s, %s or %s", o.capture, cluster.CaptureNFTables, cluster.CaptureEBPF, cluster.CaptureAuto)
	}
	if (o.caCert == "") != (o.caKey == "") {
		return errors.New("--ca-cert and --ca-key go together: the certificate authority and its key")
	}
	if o.caCert != "" && o.join != "" {
		return errors.New("--ca-cert and --join contradict each other: a member has its intermediate from its primary")
	}
	if o.token != "" && o.join == "" {
		return errors.New("--token goes with --join ADDRESS")
	}
	if o.given("stage-limit") && o.stageLimit < minStageLimit {
		return fmt.Errorf("--stage-limit %s: give at least %s, in which a proxy that is well takes a change", o.stageLimit, minStageLimit)
	}
	return nil
}

// machine is what the options depend on.
type machine struct {
	// private is the address that is offered to other clusters when the user names none, invalid when there is none.
	private func(cluster.Family) (netip.Addr, error)
	// local says whether an address is this machine's.
	local func(netip.Addr) (bool, error)
	// bin is where programs are looked up before PATH.
	bin string
}

// settle decides the options of a cluster: what the flags say, else what was kept, else the defaults. Isolation and
// family stay what they were; the others can be changed while the cluster does not run.
func (o upOptions) settle(c cluster.Cluster, before cluster.Options, kept, running bool, m machine) (cluster.Options, error) {
	want := before
	if o.given("ip-family") {
		family, err := cluster.ParseFamily(o.family)
		if err != nil {
			return want, usageError{err}
		}
		if kept && family != before.Family {
			return want, contradiction(c, "--ip-family "+o.family, "it was made with "+string(before.Family), "leave the flag out, or remove the cluster with `heddle down --name "+c.Name+"` first")
		}
		want.Family = family
	}
	if o.given("isolated") {
		if kept && o.isolated != before.Isolated {
			was := "it was made without isolation"
			if before.Isolated {
				was = "it was made isolated"
			}
			return want, contradiction(c, fmt.Sprintf("--isolated=%t", o.isolated), was, "leave the flag out, or remove the cluster with `heddle down --name "+c.Name+"` first")
		}
		want.Isolated = o.isolated
	}
	var err error
	if o.given("gateway-proxy") {
		if want.GatewayProxy, err = absolute(o.gatewayProxy, m.bin); err != nil {
			return want, &client.Problem{What: "the gateways' proxy program is missing", Where: "--gateway-proxy " + o.gatewayProxy, Why: err.Error(), Remedy: "give the path of a stock Envoy"}
		}
	}
	if o.given("api-address") {
		if want.APIAddress, err = apiAddress(o.apiAddress, want.Family); err != nil {
			return want, usageError{err}
		}
	}
	if o.given("api-client-ca") {
		if want.APIClientCA, err = clientAuthority(o.apiClientCA); err != nil {
			return want, err
		}
	}
	if o.given("workload-key-type") {
		kind, err := ca.ParseKeyType(o.workloadKeyType)
		if err != nil {
			return want, usageError{err}
		}
		if want.WorkloadKeyType = string(kind); kind == ca.ECDSAP256 {
			want.WorkloadKeyType = ""
		}
	}
	if o.given("stage-limit") {
		want.StageLimit = o.stageLimit
	}
	if o.given("dependencies") {
		want.Observed = o.dependencies == objects.DependenciesObserved
	}
	if o.given("tcp-bypass") {
		want.TCPBypass = o.tcpBypass
		if !running && want.TCPBypass && !before.TCPBypass && exists(c.Run()) {
			// Proxies that run read one queue of their sockets, whatever the next agent attaches under them.
			return want, contradiction(c, "--tcp-bypass", "its proxies may run without it, though its agent does not run", "stop them first with `heddle down --name "+c.Name+" --keep-data`")
		}
	}
	if o.given("capture") {
		if want.Capture = o.capture; want.Capture == cluster.CaptureNFTables {
			want.Capture = ""
		}
	}
	if o.given("regex-engine") {
		if want.RegexEngine, err = cluster.ParseRegexEngine(o.regexEngine); err != nil {
			return want, usageError{err}
		}
	}
	if o.given("privileged-workloads") {
		want.PrivilegedWorkloads = o.privileged
	}
	if want, err = o.sealing(c, want, kept); err != nil {
		return want, err
	}
	if want.Etcd, err = o.store(c, before.Etcd, kept); err != nil {
		return want, err
	}
	// A cluster that was made before this was asked for goes on: the agent says what is not hidden. A proxy that is not there is
	// the preflight's finding.
	proxy, _ := absolute(o.proxy, m.bin)
	for _, shown := range c.Hidden(want, m.bin, proxy).Shown {
		if o.given(shown.Flag) || shown.GatewayProxy && o.given("gateway-proxy") {
			return want, usageError{shown}
		}
	}
	if want.Isolated {
		if o.advertise != "" {
			return want, contradiction(c, "--advertise "+o.advertise, "it is isolated and has an address of its own", "leave the flag out")
		}
		want.ExposeIngress = true
	} else if want, err = o.address(want, kept, m); err != nil {
		return want, err
	}
	want.EastWestGateways = 0
	if want.Isolated || want.Advertise.IsValid() {
		want.EastWestGateways = eastWestGateways
	}
	if running && o.changing() == "" {
		// A found address that has moved is taken up by the next start.
		return before, nil
	}
	if running && want != before {
		return want, contradiction(c, o.changing(), "it is running", "stop it first with `heddle down --name "+c.Name+" --keep-data`")
	}
	return want, nil
}

// address chooses the address for other clusters on a shared host.
func (o upOptions) address(want cluster.Options, kept bool, m machine) (cluster.Options, error) {
	if o.given("advertise") {
		want.Advertise, want.ExposeIngress = netip.Addr{}, false
		if o.advertise == "" {
			// Asked for none.
			return want, nil
		}
		address, err := netip.ParseAddr(o.advertise)
		if err != nil {
			return want, usageError{err}
		}
		want.Advertise, want.ExposeIngress = address.Unmap(), true
	} else if !want.ExposeIngress {
		// Found by itself before, or for the first time: it follows the machine.
		if kept && !want.Advertise.IsValid() {
			return want, nil
		}
		if kept {
			if here, err := m.local(want.Advertise); err != nil || here {
				return want, err
			}
		}
		found, err := m.private(want.Family)
		// A kept address whose interface is down for the moment stays: the others know the cluster by it.
		if err == nil && (found.IsValid() || !kept) {
			want.Advertise = found
		}
		return want, err
	}
	if cluster.FamilyOf(want.Advertise) != want.Family {
		return want, usageError{fmt.Errorf("--advertise %s is no %s address, which the cluster uses; see --ip-family", want.Advertise, want.Family)}
	}
	here, err := m.local(want.Advertise)
	if err == nil && !here {
		err = &client.Problem{What: "the address for other clusters is not this machine's", Where: want.Advertise.String(), Why: "no interface has it",
			Remedy: "name one of this machine's addresses with --advertise; `ip address` shows them"}
	}
	return want, err
}

// changing names the flags that a running cluster cannot heed.
func (o upOptions) changing() string {
	var names []string
	for _, flag := range []string{"advertise", "gateway-proxy", "api-address", "api-client-ca", "stage-limit", "dependencies", "workload-key-type", "privileged-workloads", "tcp-bypass", "capture", "regex-engine", "secrets-key-file", "kms-command", "etcd-endpoints", "etcd-cacert", "etcd-cert", "etcd-key"} {
		if o.given(flag) {
			names = append(names, "--"+flag)
		}
	}
	return strings.Join(names, " ")
}

// apiAddress reads --api-address. A port alone is on loopback: nobody opens it to others by accident.
func apiAddress(text string, family cluster.Family) (netip.AddrPort, error) {
	if text == "" || text == "none" {
		return netip.AddrPort{}, nil
	}
	if port, err := strconv.ParseUint(strings.TrimPrefix(text, ":"), 10, 16); err == nil && port > 0 {
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if family == cluster.IPv6 {
			loopback = netip.IPv6Loopback()
		}
		return netip.AddrPortFrom(loopback, uint16(port)), nil
	}
	address, err := netip.ParseAddrPort(text)
	if err != nil || address.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("--api-address %q: give a port (then it is on loopback), or an IP address and a port, for example 6443 or 192.0.2.10:6443", text)
	}
	return address, nil
}

// sealing decides how Secrets are encrypted. The file of a cluster that has one stays where it is: another would open none
// of its Secrets.
func (o upOptions) sealing(c cluster.Cluster, want cluster.Options, kept bool) (cluster.Options, error) {
	if o.given("secrets-key-file") {
		path, err := filepath.Abs(o.secretsKey)
		if err != nil || o.secretsKey == "" {
			return want, usageError{fmt.Errorf("--secrets-key-file %q: give the path of a file", o.secretsKey)}
		}
		if now := c.SecretsKey(want); kept && path != now && exists(now) {
			if _, err := os.Stat(path); err != nil {
				return want, &client.Problem{What: "the cluster's Secrets are encrypted with keys of another file", Where: "--secrets-key-file " + o.secretsKey, Why: now + " holds the keys, and the new file is not there",
					Remedy: fmt.Sprintf("move it: stop the cluster with `heddle down --name %s --keep-data`, then `mv %s %s`", c.Name, now, path)}
			}
		}
		want.SecretsKeyFile = path
	}
	if o.given("kms-command") {
		want.KMSCommand = ""
		if o.kmsCommand != "" && o.kmsCommand != "none" {
			path, err := filepath.Abs(o.kmsCommand)
			if err == nil {
				err = seal.CheckCommand(path)
			}
			if err != nil {
				return want, &client.Problem{What: "the KMS command cannot be used", Where: "--kms-command " + o.kmsCommand, Why: err.Error(), Remedy: "give a program that only root can write"}
			}
			want.KMSCommand = path
		}
	}
	return want, nil
}

// clientAuthority is the whole path of a file with certificates.
func clientAuthority(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	whole, err := filepath.Abs(path)
	var content []byte
	if err == nil {
		content, err = os.ReadFile(whole)
	}
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(content) {
		err = errors.New("it holds no certificate in PEM")
	}
	if err != nil {
		return "", &client.Problem{What: "the API's client authority cannot be used", Where: "--api-client-ca " + path, Why: err.Error(), Remedy: "give a file with its certificates (PEM), which only root can write"}
	}
	return whole, nil
}

func contradiction(c cluster.Cluster, flag, why, remedy string) error {
	return &client.Problem{What: fmt.Sprintf("cluster %q does not allow %s", c.Name, flag), Where: c.Data(), Why: why, Remedy: remedy}
}

// absolute is the path of a program, whatever the working directory; empty stays empty.
func absolute(program, bin string) (string, error) {
	if program == "" {
		return "", nil
	}
	if strings.Contains(program, "/") {
		path, err := filepath.Abs(program)
		if err != nil {
			return "", err
		}
		program = path
	}
	return process.Resolve(program, bin)
}

func hostPort(a netip.Addr, port int) string { return net.JoinHostPort(a.String(), strconv.Itoa(port)) }

// primaryAddress is where the primary is dialled, by this run and later by the controller. An isolated cluster has no
// resolver of the machine: names are looked up outside of it, and the address is kept instead of the name.
func primaryAddress(ctx context.Context, text string, o cluster.Options, lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)) (string, error) {
	complete, err := federation.JoinAddress(text)
	if err != nil || !o.Isolated {
		return complete, err
	}
	host, port, err := net.SplitHostPort(complete)
	if err != nil {
		return "", err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return complete, nil
	}
	network := "ip4"
	if o.Family == cluster.IPv6 {
		network = "ip6"
	}
	found, err := lookup(ctx, network, host)
	if err == nil && len(found) == 0 {
		err = errors.New("it has no such address")
	}
	if err != nil {
		return "", &client.Problem{What: fmt.Sprintf("no %s address of the primary is known", cmp.Or(o.Family, cluster.IPv4)), Where: "--join " + text, Why: err.Error(), Remedy: "give the primary's address in place of its name"}
	}
	return net.JoinHostPort(found[0].Unmap().String(), port), nil
}
