package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/agent/lock"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/server/client"
)

func (s *session) downCommand() *cobra.Command {
	var name string
	var keepData, purge bool
	cmd := &cobra.Command{
		Use: "down", Short: "Stop a cluster and remove everything that it made on this machine", Args: cobra.NoArgs,
		Long: "Stop a cluster and remove everything that it made on this machine: processes, network namespaces, interfaces, packet filter\n" +
			"rules, control groups, runtime files and, unless --keep-data is given, its store and keys. Works after crashes too, and twice.\n\n" +
			"The keys of Secrets stay when the Secrets do: in a store elsewhere, or in a file that --secrets-key-file named.",
		Example: "  sudo heddle down --name cluster1\n  sudo heddle down --name cluster1 --keep-data",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name == "" {
				remote, err := s.remote()
				if err != nil {
					return err
				}
				if remote != nil {
					return &client.Problem{What: fmt.Sprintf("the context %q is of a cluster of another machine, which cannot be removed from here", remote.Name), Remedy: "name a cluster of this machine with --name"}
				}
				chosen, err := s.cluster()
				if err != nil {
					return err
				}
				name = chosen.Name
			}
			c, err := cluster.New(name)
			if err != nil {
				return usageError{err}
			}
			if purge && keepData {
				return usageError{errors.New("--purge and --keep-data contradict each other")}
			}
			if os.Geteuid() != 0 {
				return &client.Problem{What: "root is needed", Where: fmt.Sprintf("user id %d", os.Geteuid()), Why: "network namespaces and packet filter rules are removed", Remedy: "run the command with sudo"}
			}
			held, err := lock.Take(c.Lock())
			if errors.Is(err, lock.ErrHeld) {
				return &client.Problem{What: "another `heddle up` or `heddle down` of this cluster is at work", Where: c.Lock(), Remedy: "wait until it is done"}
			}
			if err != nil {
				return err
			}
			defer held.Close()
			// A removal that has begun is ended, whatever the terminal says.
			ctx := context.WithoutCancel(cmd.Context())
			keep := agent.KeepKeys
			switch {
			case keepData:
				keep = agent.KeepData
			case purge:
				keep = agent.KeepNothing
			}
			traces, keys := agent.Traces(c), agent.KeysOfOthers(c)
			if purge && keys != "" {
				// There is nothing else left of the cluster, perhaps.
				traces = append(traces, keys)
			}
			p := newProgress(s.out)
			if len(traces) > 0 {
				p.begin("stop and remove cluster " + c.Name)
			}
			if err := agent.Down(ctx, c, keep, discardLog()); err != nil {
				if len(traces) > 0 {
					p.fail()
				}
				return &client.Problem{What: "not everything could be removed", Where: c.Name, Why: err.Error(), Remedy: "correct the cause and run `heddle down` again"}
			}
			// The roots go with the last cluster.
			forgetLock(c)
			if content, err := s.contexts.read(); err == nil && content.Current == c.Name {
				if err := s.contexts.write(contextContent{Contexts: content.Contexts}); err != nil {
					fmt.Fprintf(s.err, "warning: %v\n", err)
				}
			}
			if len(traces) == 0 {
				fmt.Fprintf(s.out, "Cluster %q does not run here; nothing to remove.\n", c.Name)
				return nil
			}
			p.done()
			switch {
			case keepData:
				fmt.Fprintf(s.out, "Its data is kept in %s.\n", c.Data())
			case keys != "" && !purge:
				fmt.Fprintf(s.out, "The keys of Secrets are kept in %s: the cluster's objects are in a store elsewhere, whose Secrets nobody can read without them.\n"+
					"`heddle down --name %s --purge` removes them too.\n", keys, c.Name)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "the cluster's name (default: the current one)")
	cmd.Flags().BoolVar(&keepData, "keep-data", false, "keep store, keys and logs for the next up")
	cmd.Flags().BoolVar(&purge, "purge", false, "remove the keys of Secrets too that are in a store elsewhere")
	return cmd
}

func discardLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
