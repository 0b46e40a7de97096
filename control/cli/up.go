package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/agent/isolation"
	"heddle.io/heddle/control/agent/lock"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/preflight"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/federation"
	"heddle.io/heddle/control/server/client"
)

func (s *session) upCommand() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use: "up", Short: "Start a cluster on this machine, or repair it", Args: cobra.NoArgs,
		Long: "Start a cluster on this machine: controller, certificate authority, agent, ingress gateway and, where other clusters can reach it,\n" +
			"east-west gateways. With --join it becomes a member of another cluster's mesh first.\n\n" +
			"Prerequisites are checked first; nothing is changed unless all are met. On a cluster that runs, up repairs what is broken. What the\n" +
			"first up chose (isolation, IP family, address) is kept with the cluster's data and need not be repeated.\n\n" +
			"With HEDDLE_LOG=debug in the environment (debug, info, warn or error; info without), controller and agent say more in their logs:\n" +
			"of every push what it was about, and of every proxy what it was sent and how it answered. What runs already keeps its level.",
		Example: "  sudo heddle up --name cluster1\n" +
			"  sudo heddle up --name cluster1 --ca-cert mesh-ca.pem --ca-key mesh-ca-key.pem\n" +
			"  sudo HEDDLE_LOG=debug heddle up --name cluster1\n" +
			"  sudo heddle up --name cluster2 --isolated\n" +
			"  sudo heddle up --name cluster2 --join 192.168.1.10:15443 --token hdl1.…",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.name == "" {
				o.name = orDefault(s.clusterName, "cluster1")
			}
			c, err := cluster.New(o.name)
			if err != nil {
				return usageError{err}
			}
			o.given = cmd.Flags().Changed
			if err := o.check(); err != nil {
				return usageError{err}
			}
			if _, err := logLevel(); err != nil {
				return usageError{err}
			}
			bin, self, err := ownPlace()
			if err != nil {
				return err
			}
			return s.up(cmd.Context(), c, o, bin, self)
		},
	}
	o.register(cmd.Flags())
	return cmd
}

// ownPlace is this program's directory and path.
func ownPlace() (bin, self string, err error) {
	self, err = os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", "", fmt.Errorf("find own program: %w", err)
	}
	return filepath.Dir(self), self, nil
}

// bringing is one run of `up`.
type bringing struct {
	*session
	cluster   cluster.Cluster
	flags     upOptions
	bin, self string

	// options that the cluster is to run with, before those that were kept.
	options, before cluster.Options
	// primary is the address to join, completed and, for an isolated cluster, resolved; empty without.
	primary string
	// external is the certificate authority that was made elsewhere, nil without.
	external *ca.External
	// fresh says that there was nothing of the cluster, crashed that there was the rest of one that may still serve: a
	// repair that fails leaves it alone.
	fresh, crashed bool
	// agent is the process id of the running agent, 0 without one.
	agent int
	// member says that the cluster belongs to another one's mesh already.
	member     bool
	membership federation.Membership
}

func (s *session) up(ctx context.Context, c cluster.Cluster, o upOptions, bin, self string) error {
	// Without root not even the lock can be taken.
	if probes := preflight.Machine(c, cluster.Options{}, bin); probes.UID() != 0 {
		return s.refuse(preflight.Check(probes, preflight.Requirements{}))
	}
	held, err := lock.Take(c.Lock())
	if errors.Is(err, lock.ErrHeld) {
		return &client.Problem{What: "another `heddle up` or `heddle down` of this cluster is at work", Where: c.Lock(), Remedy: "wait until it is done"}
	}
	if err != nil {
		return err
	}
	defer held.Close()
	b := &bringing{session: s, cluster: c, flags: o, bin: bin, self: self}
	if record, running := agent.Serving(ctx, c); running {
		b.agent = record.PID
	}
	if err := b.decide(ctx); err != nil {
		if b.agent == 0 {
			forgetLock(c)
		}
		return err
	}
	if o.foreground && b.agent != 0 {
		return &client.Problem{What: fmt.Sprintf("cluster %q is already running", c.Name), Where: fmt.Sprintf("agent pid %d", b.agent), Remedy: "stop it first with `heddle down`"}
	}
	if b.agent != 0 {
		ready, missing := b.readiness(ctx)
		if !ready {
			fmt.Fprintf(s.out, "Cluster %q is running but not healthy (%s); waiting for its repair.\n", c.Name, missing)
		} else {
			fmt.Fprintf(s.out, "Cluster %q is already running.\n", c.Name)
		}
	} else if !o.foreground {
		fmt.Fprintf(s.out, "Starting cluster %q\n", c.Name)
	}
	b.fresh, b.crashed = !exists(c.Data()), exists(c.Run())
	err = b.prepare(ctx)
	if err == nil && o.foreground {
		return b.foreground(ctx, held)
	}
	if err == nil {
		err = b.start(ctx)
	}
	if err != nil {
		if b.agent == 0 && !b.crashed {
			b.undo(ctx)
		}
		return err
	}
	if content, err := s.contexts.read(); err == nil && content.Current == "" {
		content.Current = c.Name
		if err := s.contexts.write(content); err != nil {
			fmt.Fprintf(s.err, "warning: current context not kept: %v\n", err)
		}
	}
	b.printSummary(ctx)
	return nil
}

// forgetLock removes what only the lock needed: neither its file nor an empty directory is a trace worth keeping.
func forgetLock(c cluster.Cluster) { _, _ = os.Remove(c.Lock()), os.Remove(c.RunRoot) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// decide settles the options and checks that they can work, without changing anything.
func (b *bringing) decide(ctx context.Context) error {
	c := b.cluster
	var err error
	if b.before, err = c.Options(); err != nil {
		return err
	}
	machine := machine{private: network.PrivateAddress, local: network.IsLocal, bin: b.bin}
	if b.options, err = b.flags.settle(c, b.before, c.Kept(), b.agent != 0, machine); err != nil {
		return err
	}
	if b.membership, b.member, err = federation.ReadMembership(c); err != nil {
		return err
	}
	if b.flags.join != "" {
		if b.primary, err = primaryAddress(ctx, b.flags.join, b.options, net.DefaultResolver.LookupNetIP); err != nil {
			return err
		}
	}
	if err := b.checkJoin(); err != nil {
		return err
	}
	if err := b.checkAuthority(); err != nil {
		return err
	}
	if b.agent != 0 {
		return nil
	}
	return b.refuse(preflight.Check(preflight.Machine(c, b.options, b.bin), requirements(c, b.options, b.flags)))
}

// authority is where the cluster's certificate authority is kept, and what it is for.
func (b *bringing) authority() ca.Options {
	return ca.Options{Dir: federation.AuthorityDir(b.cluster), Cluster: b.cluster.Name, TrustDomain: cluster.Domain, Now: b.now}
}

// checkAuthority reads the certificate authority that was made elsewhere, and says why the cluster cannot have it.
func (b *bringing) checkAuthority() error {
	if b.flags.caCert == "" {
		return nil
	}
	external, err := b.flags.external(b.authority())
	if err != nil {
		return err
	}
	if b.member {
		return contradiction(b.cluster, "--ca-cert "+b.flags.caCert, "it is a member of the mesh of "+b.membership.Primary, "leave the flags out; the mesh's authority is at the primary")
	}
	if err := ca.CheckProvided(b.authority(), external); err != nil {
		return contradiction(b.cluster, "--ca-cert "+b.flags.caCert, err.Error(), "leave the flags out, and replace the authority with `heddle ca csr` and `heddle ca install` while the cluster runs")
	}
	b.external = &external
	return nil
}

// checkJoin says why the cluster cannot join in the way that was asked for.
func (b *bringing) checkJoin() error {
	name, address := b.cluster.Name, b.flags.join
	switch {
	case address == "":
		return nil
	case b.agent != 0 && b.member && b.membership.Address == b.primary:
		return nil
	case b.agent != 0:
		return &client.Problem{What: fmt.Sprintf("cluster %q is running already, and up does not have it join", name), Where: fmt.Sprintf("agent pid %d", b.agent),
			Remedy: fmt.Sprintf("run `heddle --cluster %s cluster join %s --token …`", name, address)}
	case !b.member && exists(filepath.Join(b.cluster.Data(), "ca")):
		return &client.Problem{What: fmt.Sprintf("cluster %q has a mesh of its own already", name), Where: b.cluster.Data(),
			Why: "its data was kept by an earlier `heddle down --keep-data`, or by a machine that was restarted",
			Remedy: fmt.Sprintf("start it without --join, then run `heddle --cluster %s cluster join %s --token …`; or remove its data with `heddle down --name %s`",
				name, address, name)}
	case !b.member && b.flags.token == "":
		return usageError{&client.Problem{What: "joining needs a token", Where: "--token", Remedy: "`heddle cluster token`, run on the primary, prints one with the whole command"}}
	}
	return nil
}

func requirements(c cluster.Cluster, o cluster.Options, flags upOptions) preflight.Requirements {
	r := preflight.Requirements{Data: c.Data(), Run: c.Run(), Proxies: []string{flags.proxy}, Family: o.Family, Capture: o.Capture}
	if o.GatewayProxy != "" {
		r.Proxies = append(r.Proxies, o.GatewayProxy)
	}
	if o.RegexEngine == cluster.Hyperscan && !flags.foreign {
		r.Hyperscan = flags.proxy
	}
	if o.Isolated {
		return r
	}
	// Names are answered while the agent is away: then the address is taken by the cluster itself.
	if !agent.Answering(c) {
		r.Addresses = append(r.Addresses, hostPort(o.Family.Ranges().Gateway().Addr(), cluster.PortDNS))
	}
	if o.Advertise.IsValid() {
		r.Addresses = append(r.Addresses, hostPort(o.Advertise, cluster.PortEastWest))
	}
	return r
}

// refuse prints every finding; with any, the command has failed.
func (s *session) refuse(found []preflight.Finding) error {
	if len(found) == 0 {
		return nil
	}
	for _, f := range found {
		s.printFinding(f)
	}
	fmt.Fprintln(s.err, "Nothing was changed.")
	return silentError{}
}

// prepare keeps the options, makes the namespaces of an isolated cluster, and has it join: all that comes before its
// first process.
func (b *bringing) prepare(ctx context.Context) error {
	c := b.cluster
	if err := agent.MakeLogs(c); err != nil {
		return &client.Problem{What: "the log directory cannot be made", Where: c.Logs(), Why: reason(err), Remedy: "make its file system writable"}
	}
	// The data directory holds keys.
	if err := os.Chmod(c.Data(), 0o711); err != nil {
		return fmt.Errorf("guard data directory: %w", err)
	}
	if b.options.Isolated {
		p := newProgress(b.out)
		p.begin("network and mounts of its own")
		var err error
		if b.options, err = isolation.Reserve(c, b.options); err == nil {
			err = isolation.Ensure(c, b.options, b.agent)
		}
		if err != nil {
			p.fail()
			return err
		}
		p.done()
	} else if b.agent == 0 {
		var err error
		if b.options, err = isolation.Reserve(c, b.options); err != nil {
			return err
		}
	}
	if b.agent != 0 {
		return nil
	}
	if b.external != nil {
		if err := ca.Provide(b.authority(), *b.external); err != nil {
			return &client.Problem{What: "the certificate authority cannot be kept", Where: federation.AuthorityDir(c), Why: reason(err), Remedy: "make its file system writable"}
		}
	}
	if b.flags.join == "" {
		return nil
	}
	return b.join(ctx)
}

// join makes the cluster a member before anything of it runs. A member is repaired: it finds its primary at the address.
func (b *bringing) join(ctx context.Context) error {
	p := newProgress(b.out)
	p.begin("join the mesh at " + b.flags.join)
	o := federation.JoinOptions{Cluster: b.cluster, Address: b.primary, Token: b.flags.token, Version: version}
	if b.options.Isolated {
		o.Dial = func(ctx context.Context, protocol, address string) (net.Conn, error) {
			return network.Dial(ctx, b.cluster.IsolatedNetns(), protocol, address)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, b.flags.timeout)
	defer cancel()
	membership, err := federation.Join(ctx, o)
	if err != nil {
		p.fail()
		return err
	}
	b.membership, b.member = membership, true
	p.done()
	return nil
}

// undo leaves nothing half done: what was there before stays, the rest goes.
func (b *bringing) undo(ctx context.Context) {
	c := b.cluster
	// A primary that accepted, or may have, knows this cluster by the key that the join left: with it, up can be repeated.
	joined := b.flags.join != "" && exists(filepath.Join(c.Data(), "federation"))
	// Keys of a store elsewhere may be there from before, and are not this command's to lose.
	keep := agent.KeepKeys
	if !b.fresh || joined {
		keep = agent.KeepData
	}
	if err := agent.Down(context.WithoutCancel(ctx), c, keep, discardLog()); err != nil {
		fmt.Fprintf(b.err, "warning: cleaning up: %v\n", err)
	}
	if !b.fresh && b.before != b.options {
		if err := c.Keep(b.before); err != nil {
			fmt.Fprintf(b.err, "warning: cleaning up: %v\n", err)
		}
	}
	forgetLock(c)
	if b.fresh && joined {
		fmt.Fprintf(b.err, "The primary may know the cluster already: its key is kept in %s, repeat the command.\n", c.Data())
	}
}

// connectPatience is how long `up` waits until a member has its stream to the primary. It starts without, too: the
// primary may be away.
const connectPatience = 10 * time.Second
