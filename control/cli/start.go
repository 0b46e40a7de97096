package cli

import (
	"github.com/spf13/cobra"

	"heddle.io/heddle/control/agent"
)

func (s *session) startCommand() *cobra.Command {
	return s.annotateCommand("start", "Start workloads that were stopped", "started",
		func(annotations map[string]string) bool {
			_, was := annotations[agent.AnnotationStopped]
			delete(annotations, agent.AnnotationStopped)
			return was
		})
}
