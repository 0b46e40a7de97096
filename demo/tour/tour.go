// Package tour is the demonstration: it runs the commands that a user would
// type, buys something in the shop that they made, and takes everything away
// again. It knows nothing of heddle but its command line.
package tour

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// What the tour makes.
const (
	first, second   = "cluster1", "cluster2"
	namespace       = "pinnacle"
	globalNamespace = "boutique"
	domain          = "acme.demo"
)

// Where heddle keeps clusters; a cluster is there when one of these has a
// directory of its name.
var clusterRoots = []string{"/run/heddle", "/var/lib/heddle"}

const (
	// endTime is how long a tour that was told to end may take.
	endTime = 2 * time.Minute
)

// Tour of the product. All fields are needed.
type Tour struct {
	// Heddle is the program, Manifests the folder of the split shop.
	Heddle, Manifests string
	// Record is the file that lists what was made, normally RecordPath.
	Record string
	// Roots are the directories that tell which clusters are there, normally
	// DefaultRoots().
	Roots []string
	Out   io.Writer
	// Keep leaves the clusters when something fails.
	Keep bool
	Now  func() time.Time
}

// DefaultRoots are the directories of clusters on this machine.
func DefaultRoots() []string { return slices.Clone(clusterRoots) }

// result of the part of the tour that is measured.
type result struct {
	address string
	receipt Receipt
	// commands ran before the purchase, seconds until the order's number.
	commands int
	took     time.Duration
}

// Once starts, buys, checks and removes. Its last line is
// "purchase ok: N commands, S seconds": N processes of heddle were run before
// the purchase, and S whole seconds, rounded up, passed from the start to the
// order's number. An error means that something did not hold.
func (t *Tour) Once(ctx context.Context) error {
	return t.with(ctx, func(ctx context.Context, run *commands, r *record) (string, error) {
		made, err := t.show(ctx, run, r)
		if err != nil {
			return "", err
		}
		t.summary(run, made)
		return fmt.Sprintf("purchase ok: %d commands, %.0f seconds", made.commands, math.Ceil(made.took.Seconds())), nil
	})
}

// Stay starts and buys, says what there is to see, and removes everything when
// ctx ends.
func (t *Tour) Stay(ctx context.Context) error {
	return t.with(ctx, func(ctx context.Context, run *commands, r *record) (string, error) {
		made, err := t.show(ctx, run, r)
		if err != nil {
			return "", err
		}
		t.summary(run, made)
		t.next(made)
		<-ctx.Done()
		fmt.Fprintln(t.Out)
		return "", nil
	})
}

// with holds the record while the tour goes on, and removes what was made.
func (t *Tour) with(ctx context.Context, walk func(context.Context, *commands, *record) (string, error)) error {
	r, err := openRecord(t.Record)
	if err != nil {
		return err
	}
	run := &commands{heddle: t.Heddle, display: NewDisplay(t.Out, t.Now)}
	last, err := "", t.free(r)
	if err != nil {
		// The record of an earlier tour stays for `make demo-down`.
		return errors.Join(err, r.close())
	}
	last, err = walk(ctx, run, r)
	if err != nil && t.Keep && ctx.Err() == nil {
		fmt.Fprintf(t.Out, "\nThe clusters are left as they are; `make demo-down` removes them.\n")
		return errors.Join(err, r.close())
	}
	if err = errors.Join(err, t.remove(ctx, run, r), r.close()); err != nil {
		return err
	}
	if last != "" {
		fmt.Fprintln(t.Out, last)
	}
	return nil
}

// free refuses to work beside clusters of the same names.
func (t *Tour) free(r *record) error {
	for _, name := range []string{first, second} {
		if slices.Contains(r.made.Clusters, name) {
			return fmt.Errorf("an earlier demo left cluster %q; `make demo-down` removes it", name)
		}
		for _, root := range t.Roots {
			if _, err := os.Stat(filepath.Join(root, name)); err == nil {
				return fmt.Errorf("there is a cluster %q already, in %s; the demo would make one of that name. "+
					"If it is not needed any more: heddle down --name %s", name, filepath.Join(root, name), name)
			}
		}
	}
	return nil
}

// What `heddle up` prints, as people read it.
var (
	joinLine    = regexp.MustCompile(`--join (\S+) --token (\S+)`)
	ingressLine = regexp.MustCompile(`(?m)^\s*ingress\s+(http://\S+)`)
)

// show makes everything and buys.
func (t *Tour) show(ctx context.Context, run *commands, r *record) (result, error) {
	began := t.Now()
	fmt.Fprintf(t.Out, "Two clusters, one global namespace, and a shop in both\n\n")
	if err := r.add(first); err != nil {
		return result{}, err
	}
	output, err := run.run(ctx, "up", "--name", first, "--isolated")
	if err != nil {
		return result{}, err
	}
	join := joinLine.FindStringSubmatch(output)
	if join == nil {
		return result{}, fmt.Errorf("`heddle up` printed no join command:\n%s", indent(output))
	}
	if err := r.add(second); err != nil {
		return result{}, err
	}
	output, err = run.run(ctx, "up", "--name", second, "--isolated", "--join", join[1], "--token", join[2])
	if err != nil {
		return result{}, err
	}
	ingress := ingressLine.FindStringSubmatch(output)
	if ingress == nil {
		return result{}, fmt.Errorf("`heddle up` printed no address of the ingress:\n%s", indent(output))
	}
	for _, args := range [][]string{
		{"gns", "create", globalNamespace, "--domain", domain, "--map", first + "/" + namespace, "--map", second + "/" + namespace, "--cluster", first},
		{"apply", "-f", t.Manifests},
		{"check"},
	} {
		if _, err := run.run(ctx, args...); err != nil {
			return result{}, err
		}
	}
	made := result{address: ingress[1], commands: len(run.steps)}
	run.display.begin("buy at " + made.address)
	made.receipt, err = Buy(ctx, made.address)
	made.took = t.Now().Sub(began)
	run.display.end(err != nil)
	if ctx.Err() != nil {
		return result{}, context.Cause(ctx)
	}
	if err != nil {
		return result{}, err
	}
	if err := made.receipt.Check(first, second); err != nil {
		return result{}, fmt.Errorf("order %s was placed, but not as it should be:\n%s", made.receipt.Number, indent(err.Error()))
	}
	output, err = run.run(ctx, "logs", "-n", namespace, "checkoutservice", "--cluster", first)
	if err != nil {
		return result{}, err
	}
	if !strings.Contains(output, made.receipt.Number) {
		return result{}, fmt.Errorf("order %s is not in the log of checkoutservice in %s", made.receipt.Number, first)
	}
	return made, nil
}

// summary tells what was done.
func (t *Tour) summary(run *commands, made result) {
	fmt.Fprintf(t.Out, "\n  shop      %s\n  order     %s, %s for %s\n", made.address, made.receipt.Number, strings.Join(made.receipt.Products, " and "), made.receipt.Total)
	fmt.Fprintf(t.Out, "  calls     %d behind the order's page, %d of them between %s and %s; all by mutual TLS\n",
		len(made.receipt.Calls), made.receipt.Crossings(), first, second)
	fmt.Fprintf(t.Out, "\n  seconds   command\n")
	for _, s := range run.steps[:made.commands] {
		fmt.Fprintf(t.Out, "  %7.1f   %s\n", s.Took.Seconds(), s.Line)
	}
	fmt.Fprintf(t.Out, "  %7.1f   from nothing to the order's number\n\n", made.took.Seconds())
}

// next tells what there is to see.
func (t *Tour) next(made result) {
	heddle := t.Heddle
	if here, err := os.Getwd(); err == nil {
		if short, err := filepath.Rel(here, heddle); err == nil && !strings.HasPrefix(short, "..") {
			heddle = "./" + short
		}
	}
	fmt.Fprintf(t.Out, "Try next:\n")
	lines, width := [][2]string{
		{"open " + made.address, "buy something, and see at the foot of the page who answered"},
		{heddle + " cluster list --cluster " + first, "the clusters, and whether they reach each other"},
		{heddle + " gns describe " + globalNamespace + " --cluster " + first, "what runs where, and the names it answers to"},
		{heddle + " ps --cluster " + second, "the workloads of a cluster"},
		{heddle + " check", "proves both clusters, from both sides"},
		{heddle + " logs -n " + namespace + " checkoutservice --cluster " + first, "the order"},
	}, 0
	for _, line := range lines {
		width = max(width, len(line[0]))
	}
	for _, line := range lines {
		fmt.Fprintf(t.Out, "  %-*s   %s\n", width, line[0], line[1])
	}
	host, _ := strings.CutPrefix(strings.TrimSuffix(made.address, "/"), "http://")
	fmt.Fprintf(t.Out, "\nFrom another machine: ssh -L 8080:%s:80 <this machine>, then open http://localhost:8080/\n", host)
	fmt.Fprintf(t.Out, "\nCtrl-C removes everything, and so does `make demo-down`.\n")
}

// remove takes away what the record lists, the newest first.
func (t *Tour) remove(ctx context.Context, run *commands, r *record) error {
	// A removal that has begun is ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	var failed []error
	for _, name := range slices.Backward(slices.Clone(r.made.Clusters)) {
		if _, err := run.run(ctx, "down", "--name", name); err != nil {
			failed = append(failed, err)
			continue
		}
		if err := r.drop(name); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Down removes what a tour made: it ends the one that runs, or clears up after
// one that was killed.
func (t *Tour) Down(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endTime+graceTime)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	told := 0
	for {
		r, err := openRecord(t.Record)
		var running errRunning
		if errors.As(err, &running) {
			if running.PID != told {
				fmt.Fprintf(t.Out, "The demo runs as process %d: telling it to end.\n", running.PID)
				if err := syscall.Kill(running.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
					return fmt.Errorf("end process %d: %w", running.PID, err)
				}
				told = running.PID
			}
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				return fmt.Errorf("the demo, process %d, has not ended: %w", running.PID, ctx.Err())
			}
		}
		if err != nil {
			return err
		}
		if len(r.made.Clusters) == 0 {
			fmt.Fprintln(t.Out, "Nothing of the demo is left.")
			return r.close()
		}
		run := &commands{heddle: t.Heddle, display: NewDisplay(t.Out, t.Now)}
		return errors.Join(t.remove(ctx, run, r), r.close())
	}
}
