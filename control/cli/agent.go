package cli

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/cobra"

	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/translate"
)

// agentCommand is what `up` starts.
func (s *session) agentCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "agent", Short: "Run a cluster's agent", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	var o upOptions
	run := &cobra.Command{Use: "run", Short: "Run the agent in the foreground", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.New(o.name)
			if err != nil {
				return usageError{err}
			}
			return s.runAgent(cmd.Context(), c, o)
		}}
	run.Flags().StringVar(&o.name, "name", "", "the cluster's name")
	run.Flags().StringVar(&o.proxy, "proxy", "heddle-proxy", "the proxy program")
	run.Flags().BoolVar(&o.foreign, "foreign-proxy", false, "the proxy takes a stock Envoy's arguments")
	cmd.AddCommand(run)
	return cmd
}

func (s *session) runAgent(ctx context.Context, c cluster.Cluster, o upOptions) error {
	bin, self, err := ownPlace()
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
	log := slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: logLevel()}))
	err = agent.Run(ctx, agent.Config{
		Cluster: c, Launcher: []string{self, "launch"}, Controller: controller, Proxy: o.proxy, ForeignProxy: o.foreign, Bin: bin,
		Bootstrap: func(p agent.Proxy) ([]byte, error) {
			return translate.Bootstrap(translate.BootstrapParams{Node: node(p, o.foreign), Socket: p.Socket})
		},
		Node: func(p agent.Proxy) (*corev3.Node, error) { return node(p, o.foreign).Proto(), nil },
		Log:  log,
	})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	return nil
}

// node is the proxy in the translation's words.
func node(p agent.Proxy, foreign bool) translate.Node {
	n := translate.Node{
		Type: translate.Sidecar, Address: p.Address, Name: p.Name, Namespace: p.Namespace, Domain: cluster.Domain, Workload: p.Workload,
		Account: p.ServiceAccount, Labels: p.Labels, Cluster: p.Cluster, TrustDomain: cluster.Domain, Heddle: !p.Foreign && !foreign,
	}
	if p.Gateway {
		n.Type = translate.Router
	}
	return n
}

// logLevel is info, or what HEDDLE_LOG says.
func logLevel() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(os.Getenv("HEDDLE_LOG"))); err != nil {
		return slog.LevelInfo
	}
	return level
}
