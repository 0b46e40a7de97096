package cli

import (
	"github.com/spf13/cobra"

	"heddle.io/heddle/control/agent/process"
)

// launchCommand becomes the process that a file describes; the agent starts every process by it.
func (s *session) launchCommand() *cobra.Command {
	return &cobra.Command{Use: "launch FILE", Short: "Become a workload's process", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return process.Launch(args[0]) }}
}
