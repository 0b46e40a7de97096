package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/cobra"

	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/agent/dns"
	"heddle.io/heddle/control/agent/isolation"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/translate"
)

// agentCommand is what `up` starts, with the parts that the agent is made of.
func (s *session) agentCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "agent", Short: "Run a cluster's agent", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	var o upOptions
	cmd.PersistentFlags().StringVar(&o.name, "name", "", "the cluster's name")
	// of runs a part for the cluster that the flag names.
	of := func(part func(ctx context.Context, c cluster.Cluster, args []string) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, args []string) error {
			c, err := cluster.New(o.name)
			if err != nil {
				return usageError{err}
			}
			return part(cmd.Context(), c, args)
		}
	}
	run := &cobra.Command{Use: "run", Short: "Run the agent in the foreground", Args: cobra.NoArgs,
		RunE: of(func(ctx context.Context, c cluster.Cluster, _ []string) error { return s.runAgent(ctx, c, o) })}
	run.Flags().StringVar(&o.proxy, "proxy", "heddle-proxy", "the proxy program")
	run.Flags().BoolVar(&o.foreign, "foreign-proxy", false, "the proxy takes a stock Envoy's arguments")
	cmd.AddCommand(run,
		&cobra.Command{Use: "dns", Short: "Answer the names of a cluster", Args: cobra.NoArgs,
			RunE: of(func(ctx context.Context, c cluster.Cluster, _ []string) error { return s.runDNS(ctx, c) })},
		&cobra.Command{Use: "enter -- COMMAND [ARG...]", Short: "Become a command inside of an isolated cluster", Args: cobra.MinimumNArgs(1),
			RunE: of(func(_ context.Context, c cluster.Cluster, args []string) error {
				program, err := process.Resolve(args[0])
				if err != nil {
					return err
				}
				return isolation.Exec(c, append([]string{program}, args[1:]...), os.Environ())
			})})
	return cmd
}

func (s *session) runAgent(ctx context.Context, c cluster.Cluster, o upOptions) error {
	bin, self, err := ownPlace()
	if err != nil {
		return err
	}
	options, err := c.Options()
	if err != nil {
		return err
	}
	controller := []string{self, "controller", "run", "--name", c.Name}
	uid, err := keptOwner(c)
	if err != nil {
		return err
	}
	if uid != 0 {
		controller = append(controller, "--owner", strconv.Itoa(uid))
	}
	public := netip.IPv4Unspecified()
	if options.Family == cluster.IPv6 {
		public = netip.IPv6Unspecified()
	}
	launcher, err := process.Resolve(process.Launcher, bin)
	if err != nil {
		return err
	}
	err = agent.Run(ctx, agent.Config{
		Cluster: c, Launcher: []string{launcher}, Controller: controller, DNS: []string{self, "agent", "dns", "--name", c.Name},
		Proxy: o.proxy, ForeignProxy: o.foreign, Bin: bin,
		Bootstrap: func(p agent.Proxy) ([]byte, error) {
			return translate.Bootstrap(translate.BootstrapParams{
				Node: node(p, o.foreign), Socket: p.Socket, Public: public, Hyperscan: options.RegexEngine == cluster.Hyperscan,
			})
		},
		Node: func(p agent.Proxy) (*corev3.Node, error) { return node(p, o.foreign).Proto(), nil },
		Log:  s.log(),
	})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	return nil
}

// runDNS answers names from the table that the agent writes. It reads nothing else of the cluster, so that it needs
// neither agent nor controller.
func (s *session) runDNS(ctx context.Context, c cluster.Cluster) error {
	options, err := c.Options()
	if err != nil {
		return err
	}
	log := s.log()
	upstreams, err := dns.Resolvers(options.Isolated, dns.ResolvFile, dns.SystemdFile)
	if err != nil {
		log.Warn("names outside of the cluster will not resolve", "error", err)
	}
	err = dns.Run(ctx, dns.Config{Address: hostPort(options.Family.Ranges().Gateway().Addr(), cluster.PortDNS), Table: agent.TablePath(c), Upstreams: upstreams, Log: log})
	if err != nil {
		return fmt.Errorf("dns: %w", err)
	}
	return nil
}

// node is the proxy in the translation's words.
func node(p agent.Proxy, foreign bool) translate.Node {
	n := translate.Node{
		Type: translate.Sidecar, Address: p.Address, Name: p.Name, Namespace: p.Namespace, Domain: cluster.Domain, Workload: p.Workload,
		Account: p.ServiceAccount, Labels: p.Labels, Cluster: p.Cluster, TrustDomain: cluster.Domain, Heddle: !p.Foreign && !foreign,
		Version: translate.IstioVersion,
	}
	if p.Gateway {
		n.Type = translate.Router
	}
	return n
}

// log of a process that the agent or `up` starts.
func (s *session) log() *slog.Logger {
	level, err := logLevel()
	log := slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: level}))
	if err != nil {
		log.Warn("the log's level is info", "error", err)
	}
	return log
}

// logLevel is what HEDDLE_LOG says; info without, and when it says nothing that is a level.
func logLevel() (slog.Level, error) {
	text := os.Getenv("HEDDLE_LOG")
	if text == "" {
		return slog.LevelInfo, nil
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return slog.LevelInfo, fmt.Errorf("HEDDLE_LOG is %q: use debug, info, warn or error", text)
	}
	return level, nil
}
