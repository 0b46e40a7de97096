package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/objects"
)

func (s *session) versionCommand() *cobra.Command {
	var output string
	var clientOnly bool
	cmd := &cobra.Command{Use: "version", Short: "Print the versions of this program and of the controller", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			document := map[string]string{"client": version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}
			if !clientOnly {
				if c, err := s.client(); err == nil {
					if status, err := c.Status(cmd.Context()); err == nil {
						document["controller"] = status.Version
					}
				}
			}
			switch output {
			case "json", "yaml":
				return objects.EncodeDocument(s.out, output, document)
			case "":
			default:
				return usageError{fmt.Errorf("unknown output format %q: use json or yaml", output)}
			}
			fmt.Fprintf(s.out, "Client: %s (%s, %s)\n", document["client"], document["go"], document["platform"])
			if v, ok := document["controller"]; ok {
				fmt.Fprintf(s.out, "Controller: %s\n", v)
			}
			return nil
		}}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	cmd.Flags().BoolVar(&clientOnly, "client", false, "this program only")
	return cmd
}
