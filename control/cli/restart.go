package cli

import (
	"time"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/agent"
)

func (s *session) restartCommand() *cobra.Command {
	return s.annotateCommand("restart", "Replace the replicas of workloads, one after the other", "restarted",
		func(annotations map[string]string) bool {
			annotations[agent.AnnotationRestarted] = time.Now().UTC().Format(time.RFC3339Nano)
			return true
		})
}
