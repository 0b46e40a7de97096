package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

func (s *session) stopCommand() *cobra.Command {
	return s.annotateCommand("stop", "Stop workloads without losing a request; they stay stopped until started", "stopped",
		func(annotations map[string]string) bool {
			was := annotations[agent.AnnotationStopped] == "true"
			annotations[agent.AnnotationStopped] = "true"
			return !was
		})
}

// annotateCommand makes a command that changes the annotations of workloads.
func (s *session) annotateCommand(use, short, done string, change func(map[string]string) bool) *cobra.Command {
	cmd := &cobra.Command{
		Use: use + " WORKLOAD...", Short: short, Example: "  heddle " + use + " -n pinnacle cartservice", Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return s.completeObjects(cmd, []string{"workloads"}, prefix)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			for _, arg := range args {
				name := arg
				if kind, after, ok := strings.Cut(arg, "/"); ok {
					if k, err := objects.FindKind(kind); err != nil || k != objects.Workload {
						return usageError{fmt.Errorf("%q is not a workload: only workloads can be %s", arg, done)}
					}
					name = after
				}
				changed, err := s.annotate(cmd.Context(), c, name, change)
				if err != nil {
					return err
				}
				if !changed {
					fmt.Fprintf(s.out, "workload.heddle.io/%s already %s\n", name, done)
					continue
				}
				fmt.Fprintf(s.out, "workload.heddle.io/%s %s\n", name, done)
			}
			return nil
		},
	}
	s.namespaceFlag(cmd)
	return cmd
}

// annotate changes one workload, and tries again when someone else changed it meanwhile.
func (s *session) annotate(ctx context.Context, c *client.Client, name string, change func(map[string]string) bool) (bool, error) {
	const attempts = 5
	var last error
	for range attempts {
		o, err := c.Get(ctx, objects.Workload, s.namespaceOr(), name)
		if err != nil {
			return false, err
		}
		annotations := map[string]string{}
		for k, v := range o.GetAnnotations() {
			annotations[k] = v
		}
		if !change(annotations) {
			return false, nil
		}
		o.SetAnnotations(annotations)
		_, last = c.Put(ctx, o)
		var problem *client.Problem
		if errors.As(last, &problem) && problem.Status == http.StatusConflict {
			continue
		}
		return last == nil, last
	}
	return false, last
}
