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

// finding is one thing that was tried or read in a cluster.
type finding struct {
	Cluster string `json:"cluster"`
	agent.Check
	// Warning says that it does not hold and that this is no failure.
	Warning bool `json:"warning,omitempty"`
	// final says that waiting does not heal it.
	final bool
}

const (
	// checkWait is how long check waits by default for what is still starting.
	checkWait = 60 * time.Second
	// checkPause lies between two tries; it grows up to longestCheckPause.
	checkPause, longestCheckPause = 200 * time.Millisecond, 2 * time.Second
	// quietWait is how long check waits before it says for what.
	quietWait = 2 * time.Second
)

func (s *session) checkCommand() *cobra.Command {
	var output string
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "check", Short: "Prove that it works: identities, mutual TLS, names, configuration, requests, both directions between clusters", Args: cobra.NoArgs,
		Long: "Prove that it works. Each line says whether something was tried or only read.\n\n" +
			"Tried: that controller and agent answer; that every Secret can be decrypted; in every replica a look-up of a name, and a\n" +
			"request without TLS from outside the mesh, which its proxy has to refuse and count; a request to every port of every service, sent from another replica through\n" +
			"its own proxy and the service's, with the identity that the server proved; a request through the ingress for every host;\n" +
			"between clusters, a handshake with every imported service through the other cluster's gateways, with the identity and the\n" +
			"cluster that the server proves, and a look-up of every global name.\n" +
			"Read, from what the parts say of themselves: readiness, certificates' ends, capture rules, which configuration every proxy\n" +
			"runs, the objects' status, and between clusters the stream to the primary, clocks, issuers, versions, whether gateways answer\n" +
			"the controller's probes.\n\n" +
			"✓ holds, ✗ does not, ! does not and is no failure, ? was tried and did not tell: silence is no refusal. While something does\n" +
			"not hold that may be starting, check tries again, for up to a minute or --wait; --wait 0 looks once. A request to a service that\n" +
			"held is not sent again; all else is tried and read anew each time, at most every two seconds in the end. Where services have more than 500 ports, 500 are chosen at random, others each time, and a line says so.\n\n" +
			"Without --cluster or $HEDDLE_CLUSTER, every cluster that runs on this machine is checked, so that both directions are tried.\n" +
			"Between two machines, run it on each.\n\n" +
			"The exit code is 0 when everything holds (there may be warnings), 1 when something does not or is not known, 2 for a wrong\n" +
			"command line. In -o json and yaml, every element has cluster, subject, name, how (tried or read) and ok; unknown, warning,\n" +
			"detail, remedy and port where they say something. Only how the details are worded may change.",
		Example: "  heddle check\n  heddle check --wait 0\n  heddle check --cluster cluster2 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output, "json", "yaml"); err != nil {
				return err
			}
			names, err := s.toCheck()
			if err != nil {
				return err
			}
			if wait < 0 {
				return usageError{fmt.Errorf("--wait %s is negative; 0 looks once", wait)}
			}
			found := s.checkUntil(cmd.Context(), names, wait)
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
	cmd.Flags().DurationVar(&wait, "wait", checkWait, "try again for so long what may still be starting; 0 looks once")
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

// checkUntil checks until everything holds, what does not cannot be healed by waiting, or the wait is over. It says on
// standard error for what it waits.
func (s *session) checkUntil(ctx context.Context, names []string, wait time.Duration) []finding {
	began, pause, told := time.Now(), checkPause, ""
	settled := map[string]settledCalls{}
	for _, name := range names {
		settled[name] = settledCalls{seed: s.seed, findings: map[string]finding{}}
	}
	for {
		found := s.checkAll(ctx, names, settled)
		waiting := starting(found)
		left := wait - time.Since(began)
		if len(waiting) == 0 || left <= 0 || ctx.Err() != nil {
			return found
		}
		if first := waiting[0]; time.Since(began) >= quietWait && told != first.Subject+first.Name {
			told = first.Subject + first.Name
			fmt.Fprintf(s.err, "waiting for %s, for up to %s: %s %s: %s\n", count(len(waiting), "check"), left.Round(time.Second), first.Subject, first.Name, firstLine(first.Detail))
		}
		timer := time.NewTimer(min(pause, left))
		pause = min(pause*3/2, longestCheckPause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// starting says that it does not hold, and may yet.
func (f finding) starting() bool { return !f.OK && !f.Warning && !f.final }

// starting are the findings that do not hold and may yet.
func starting(found []finding) []finding {
	var out []finding
	for _, f := range found {
		if f.starting() {
			out = append(out, f)
		}
	}
	return out
}

func firstLine(text string) string {
	first, _, _ := strings.Cut(text, "\n")
	return first
}

// checkAll checks clusters, side by side.
func (s *session) checkAll(ctx context.Context, names []string, settled map[string]settledCalls) []finding {
	results := make([][]finding, len(names))
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() { results[i] = s.checkCluster(ctx, name, settled[name]) })
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

// failures counts what does not hold, or is not known to, and is no warning.
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
	warnings, unclear, last, width := 0, 0, "", 0
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
		case f.Unknown:
			mark = "?"
			unclear++
		case !f.OK:
			mark = "✗"
		}
		fmt.Fprintf(s.out, "%s %-5s %-*s %s\n", mark, f.How, width, f.Subject+" "+f.Name, strings.ReplaceAll(f.Detail, "\n", "; "))
		if !f.OK && f.Remedy != "" {
			fmt.Fprintf(s.out, "  %-5s %-*s → %s\n", "", width, "", f.Remedy)
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
		if unclear > 0 {
			more = fmt.Sprintf(", of which %d did not tell", unclear) + more
		}
		fmt.Fprintf(s.out, "\n%d of %d checks failed%s%s.\n", failed, len(found), where, more)
		return
	}
	if warnings > 0 {
		fmt.Fprintf(s.out, "\n%d of %d checks passed%s%s.\n", len(found)-warnings, len(found), where, more)
		return
	}
	fmt.Fprintf(s.out, "\nAll %d checks passed%s.\n", len(found), where)
}
