package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/controller"
	"heddle.io/heddle/control/seal"
)

// controllerCommand is what the agent starts.
func (s *session) controllerCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "controller", Short: "Run a cluster's controller", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	var name string
	var owner int
	run := &cobra.Command{Use: "run", Short: "Run the controller in the foreground", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.New(name)
			if err != nil {
				return usageError{err}
			}
			log := s.log()
			var memory *os.File
			if path := os.Getenv(seal.MemoryVariable); path != "" {
				// Without, everything works but the next start when the keys are lost.
				if memory, err = seal.OpenMemory(path); err != nil {
					log.Warn("keys of Secrets are not kept for the next controller", "error", err)
				} else {
					defer memory.Close()
				}
			}
			if err := controller.Run(cmd.Context(), controller.Config{Cluster: c, Version: version, Owner: owner, Log: log, KeyMemory: memory}); err != nil {
				return fmt.Errorf("controller: %w", err)
			}
			return nil
		}}
	run.Flags().StringVar(&name, "name", "", "the cluster's name")
	run.Flags().IntVar(&owner, "owner", 0, "user who may use the API besides root")
	cmd.AddCommand(run)
	return cmd
}
