package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/objects"
)

// finding is one thing that was tried in a cluster.
type finding struct {
	Cluster string `json:"cluster"`
	agent.Check
	// Warning says that it does not hold and that this is no failure.
	Warning bool `json:"warning,omitempty"`
}

// checkPause lies between two tries of `check --wait`.
const checkPause = 200 * time.Millisecond

func (s *session) checkCommand() *cobra.Command {
	var output string
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "check", Short: "Prove that it works: identities, mutual TLS, names, configuration, requests, both directions between clusters", Args: cobra.NoArgs,
		Long: "Prove that it works, by trying it: every replica's readiness, certificate, capture, names and refusal of plaintext; every\n" +
			"proxy's configuration; every object's status; requests through the ingress. Between clusters: the stream to the primary, clocks,\n" +
			"issuers, gateways, and for every imported service a handshake through the other cluster's gateway, with the identity and the\n" +
			"cluster that the server proves.\n\n" +
			"Without --cluster or $HEDDLE_CLUSTER, every cluster that runs on this machine is checked, so that both directions are tried.\n" +
			"Between two machines, run it on each.\n\n" +
			"The exit code is 0 when nothing failed (there may be warnings), 1 when something did, 2 for a wrong command line.",
		Example: "  heddle check\n  heddle check --wait 60s\n  heddle check --cluster cluster2 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output, "json", "yaml"); err != nil {
				return err
			}
			names, err := s.toCheck()
			if err != nil {
				return err
			}
			found := s.checkUntil(cmd.Context(), names, time.Now().Add(wait))
			if output != "" {
				if err := objects.EncodeDocument(s.out, output, found); err != nil {
					return err
				}
			} else {
				s.printFindings(found, names)
			}
			if failures(found) > 0 {
				return silentError{}
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	cmd.Flags().DurationVar(&wait, "wait", 0, "try again for so long until everything holds")
	return cmd
}

// toCheck is the chosen cluster, or all that run here.
func (s *session) toCheck() ([]string, error) {
	if here := s.contexts.clusters(); !s.chosen() && len(here) > 0 {
		return here, nil
	}
	c, err := s.cluster()
	return []string{c.Name}, err
}

// checkUntil checks until everything holds or the deadline has passed.
func (s *session) checkUntil(ctx context.Context, names []string, deadline time.Time) []finding {
	for {
		found := s.checkAll(ctx, names)
		if failures(found) == 0 || !time.Now().Before(deadline) || ctx.Err() != nil {
			return found
		}
		timer := time.NewTimer(checkPause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// checkAll checks clusters, side by side.
func (s *session) checkAll(ctx context.Context, names []string) []finding {
	results := make([][]finding, len(names))
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() { results[i] = s.checkCluster(ctx, name) })
	}
	group.Wait()
	out := []finding{}
	for i, found := range results {
		for _, f := range found {
			f.Cluster = names[i]
			out = append(out, f)
		}
	}
	return out
}

// failures counts what does not hold and is no warning.
func failures(found []finding) int {
	n := 0
	for _, f := range found {
		if !f.OK && !f.Warning {
			n++
		}
	}
	return n
}

func (s *session) printFindings(found []finding, names []string) {
	warnings, last, width := 0, "", 0
	for _, f := range found {
		width = max(width, utf8.RuneCountInString(f.Subject+" "+f.Name))
	}
	for _, f := range found {
		if len(names) > 1 && f.Cluster != last {
			if last != "" {
				fmt.Fprintln(s.out)
			}
			fmt.Fprintf(s.out, "%s\n", f.Cluster)
			last = f.Cluster
		}
		mark := "✓"
		switch {
		case !f.OK && f.Warning:
			mark = "!"
			warnings++
		case !f.OK:
			mark = "✗"
		}
		fmt.Fprintf(s.out, "%s %-*s %s\n", mark, width, f.Subject+" "+f.Name, strings.ReplaceAll(f.Detail, "\n", "; "))
		if !f.OK && f.Remedy != "" {
			fmt.Fprintf(s.out, "  %-*s → %s\n", width, "", f.Remedy)
		}
	}
	where, more := "", ""
	if len(names) > 1 {
		where = fmt.Sprintf(" in %d clusters", len(names))
	}
	if warnings > 0 {
		more = ", with " + count(warnings, "warning")
	}
	if failed := failures(found); failed > 0 {
		fmt.Fprintf(s.out, "\n%d of %d checks failed%s%s.\n", failed, len(found), where, more)
		return
	}
	if warnings > 0 {
		fmt.Fprintf(s.out, "\n%d of %d checks passed%s%s.\n", len(found)-warnings, len(found), where, more)
		return
	}
	fmt.Fprintf(s.out, "\nAll %d checks passed%s.\n", len(found), where)
}
