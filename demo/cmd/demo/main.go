// Command demo shows the product: two clusters on this machine, one global
// namespace, a shop in both, and a purchase, by ordinary heddle commands.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"heddle.io/heddle/demo/tour"
)

func main() {
	// A closed terminal ends the demo like Ctrl-C.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := command().ExecuteContext(ctx)
	switch {
	case err == nil:
		return
	case errors.Is(err, context.Canceled):
		fmt.Fprintf(os.Stderr, "demo: interrupted\n")
	default:
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
	}
	os.Exit(1) //nolint:gocritic // the deferred stop only matters while the process lives
}

func command() *cobra.Command {
	root := &cobra.Command{Use: "demo", Short: "Two clusters, one global namespace, a shop in both", SilenceUsage: true, SilenceErrors: true}
	t := &tour.Tour{Record: tour.RecordPath, Roots: tour.DefaultRoots(), Out: os.Stdout, Now: time.Now}
	root.PersistentFlags().StringVar(&t.Heddle, "heddle", "", "the program heddle (default: beside this program)")
	root.PersistentFlags().StringVar(&t.Manifests, "manifests", "demo/boutique/two-clusters/", "the folder of the split shop")
	root.PersistentFlags().BoolVar(&t.Keep, "keep", false, "leave the clusters when something fails")
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return find(t) }
	for _, c := range []struct {
		use, short string
		run        func(context.Context) error
	}{
		{"up", "Start everything, buy, and stay until Ctrl-C", t.Stay},
		{"once", "Start everything, buy, check, and remove everything", t.Once},
		{"down", "Remove what a demo made", t.Down},
	} {
		root.AddCommand(&cobra.Command{Use: c.use, Short: c.short, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) }})
	}
	return root
}

// find looks for the programs and the manifests before anything is started.
func find(t *tour.Tour) error {
	if t.Heddle == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find own program: %w", err)
		}
		t.Heddle = filepath.Join(filepath.Dir(self), "heddle")
	}
	for _, file := range []string{t.Heddle, filepath.Join(filepath.Dir(t.Heddle), "boutique"), t.Manifests} {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("%w; `make build` makes the programs, and the manifests are found from the repository's root", err)
		}
	}
	return nil
}
