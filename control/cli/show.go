package cli

import (
	"context"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// show is what a command does that asks the cluster one thing: it prints the answer as its own printer does, or as -o says,
// json or yaml. The question is a method of the client's.
func show[T any](s *session, output *string, ask func(*client.Client, context.Context) (T, error), print func(T) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		c, err := s.asking(*output, "json", "yaml")
		if err != nil {
			return err
		}
		answer, err := ask(c, cmd.Context())
		if err != nil {
			return err
		}
		if *output != "" {
			return objects.EncodeDocument(s.out, *output, answer)
		}
		return print(answer)
	}
}

// asking is the client of a command whose output has one of these formats, or the command's own.
func (s *session) asking(output string, formats ...string) (*client.Client, error) {
	if err := checkFormat(output, formats...); err != nil {
		return nil, err
	}
	return s.client()
}
