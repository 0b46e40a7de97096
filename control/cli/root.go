// Package cli is the command line: one file per command, all in the idioms of kubectl and istioctl.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"heddle.io/heddle/control/agent/preflight"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// version of the program, set when it is built.
var version = "unknown"

// Exit codes.
const (
	exitError = 1
	exitUsage = 2
)

// session is what every command shares: streams, and the flags that choose cluster and namespace.
type session struct {
	in          io.Reader
	out, err    io.Writer
	clusterName string
	contextName string
	namespace   string
	contexts    contextFile
	// connect makes the client of a controller's socket.
	connect func(socket string) *client.Client
	now     func() time.Time
	// seed of what a command chooses at random.
	seed uint64
}

// usageError marks a wrong use of the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Main runs the command line and returns the process's exit code.
func Main(args []string, in io.Reader, out, err io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	s := &session{in: in, out: out, err: err, contexts: contextFile{path: contextPath()}, connect: client.New, now: time.Now, seed: rand.Uint64()}
	return s.main(ctx, args)
}

// main runs one command line.
func (s *session) main(ctx context.Context, args []string) int {
	root := s.root()
	root.SetArgs(args)
	failure := root.ExecuteContext(ctx)
	if failure == nil {
		return 0
	}
	var silent silentError
	if errors.As(failure, &silent) {
		return exitError
	}
	s.printError(failure)
	var usage usageError
	if errors.As(failure, &usage) || strings.HasPrefix(failure.Error(), "unknown command") {
		fmt.Fprintln(s.err, "Run 'heddle --help' for usage.")
		return exitUsage
	}
	return exitError
}

// silentError ends a command that has said everything already.
type silentError struct{}

func (silentError) Error() string { return "failed" }

// printError says what, where, why and what to do.
func (s *session) printError(err error) {
	var problem *client.Problem
	var finding preflight.Finding
	switch {
	case errors.As(err, &problem):
		fmt.Fprintf(s.err, "error: %s\n", problem.What)
		for i := range problem.Errors {
			fmt.Fprintf(s.err, "  %s\n", problem.Errors[i].Error())
		}
		s.printPart("where", problem.Where)
		s.printPart("why", problem.Why)
		s.printPart("remedy", problem.Remedy)
	case errors.As(err, &finding):
		s.printFinding(finding)
	default:
		fmt.Fprintf(s.err, "error: %s\n", err)
	}
}

func (s *session) printFinding(f preflight.Finding) {
	fmt.Fprintf(s.err, "error: %s\n", f.What)
	s.printPart("where", f.Where)
	s.printPart("why", f.Why)
	s.printPart("remedy", f.Remedy)
}

func (s *session) printPart(name, text string) {
	if text != "" {
		fmt.Fprintf(s.err, "  %-7s %s\n", name+":", text)
	}
}

// root is the command tree.
func (s *session) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "heddle",
		Short:         "Heddle connects, secures, observes and balances the traffic between services",
		SilenceUsage:  true,
		SilenceErrors: true,
		// Without Args, cobra suggests the nearest command for an unknown one.
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.PersistentFlags().StringVar(&s.clusterName, "cluster", "", "cluster to talk to (default: $HEDDLE_CLUSTER, the current context, or the only cluster here)")
	root.PersistentFlags().StringVar(&s.contextName, "context", "", "context to use: a cluster of this machine, or one that 'heddle context add' added (default: $HEDDLE_CONTEXT)")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		hint := ""
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			var names []string
			for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.InheritedFlags()} {
				flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
			}
			if near := objects.Nearest(unknown.GetSpecifiedName(), names); near != "" {
				hint = fmt.Sprintf("; did you mean --%s?", near)
			}
		}
		return usageError{fmt.Errorf("%w%s; see '%s --help'", err, hint, cmd.CommandPath())}
	})
	root.AddGroup(&cobra.Group{ID: "cluster", Title: "Clusters:"}, &cobra.Group{ID: "objects", Title: "Objects:"},
		&cobra.Group{ID: "workloads", Title: "Workloads:"}, &cobra.Group{ID: "access", Title: "Access:"}, &cobra.Group{ID: "look", Title: "Looking closer:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("cluster", s.upCommand(), s.downCommand(), s.clusterCommand(), s.caCommand(), s.gnsCommand(), s.contextCommand(), s.backupCommand(), s.restoreCommand())
	add("access", s.accessCommand(), s.tokenCommand(), s.auditCommand(), s.secretsCommand())
	add("objects", s.applyCommand(), s.getCommand(), s.describeCommand(), s.deleteCommand())
	add("workloads", s.psCommand(), s.logsCommand(), s.stopCommand(), s.startCommand(), s.restartCommand())
	add("look", s.checkCommand(), s.proxyCommand(), s.bypassCommand())
	root.AddCommand(s.versionCommand(), s.agentCommand(), s.controllerCommand())
	wrapArgs(root)
	return root
}

// wrapArgs makes wrong arguments usage errors everywhere.
func wrapArgs(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usageError{fmt.Errorf("%w; see '%s --help'", err, c.CommandPath())}
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		wrapArgs(c)
	}
}

// cluster is the one that the command is about.
func (s *session) cluster() (cluster.Cluster, error) {
	if remote, err := s.remote(); err != nil || remote != nil {
		if err != nil {
			return cluster.Cluster{}, err
		}
		return cluster.New(remote.Cluster)
	}
	name, err := s.contexts.choose(cmp.Or(s.contextChosen(), s.clusterName), os.Getenv("HEDDLE_CLUSTER"))
	if err != nil {
		return cluster.Cluster{}, err
	}
	return cluster.New(name)
}

// client of the cluster's controller.
func (s *session) client() (*client.Client, error) {
	c, err := s.cluster()
	if err != nil {
		return nil, err
	}
	return s.clientOf(c.Name)
}

// namespaceFlag adds -n to a command.
func (s *session) namespaceFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.namespace, "namespace", "n", "", `namespace (default "default")`)
}

// namespaceOr gives the chosen namespace or the default one.
func (s *session) namespaceOr() string {
	if s.namespace == "" {
		return "default"
	}
	return s.namespace
}
