package cli

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

func (s *session) deleteCommand() *cobra.Command {
	var files []string
	var dryRun, recursive, ignore, onlyHere bool
	cmd := &cobra.Command{
		Use: "delete (-f FILE | KIND NAME... | KIND/NAME...)", Short: "Delete objects",
		Long: "Delete objects by name or by the files that define them. A namespace takes what is in it along.\n\n" +
			"Objects in files are deleted in the clusters that `heddle apply` would bring them to.",
		Example: "  heddle delete -f demo/boutique/manifests/\n  heddle delete virtualservice shop -n pinnacle\n  heddle delete svc/cart svc/ads -n pinnacle",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(files) > 0 {
				if len(args) > 0 {
					return usageError{errors.New("give either -f or names, not both")}
				}
				manifests, err := readManifests(files, recursive, s.in)
				if err != nil {
					return err
				}
				shares, err := s.shares(cmd.Context(), manifests, onlyHere)
				if err != nil {
					return err
				}
				return s.writeShares(cmd.Context(), shares, client.ApplyRequest{Namespace: s.namespace, Delete: true,
					DryRun: dryRun, IgnoreNotFound: ignore, User: userName()})
			}
			targets, err := parseTargets(args)
			if err != nil {
				return err
			}
			if dryRun {
				return usageError{errors.New("--dry-run works with -f")}
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			for _, t := range targets {
				namespace := ""
				if t.kind.Namespaced {
					namespace = s.namespaceOr()
				}
				err := c.Delete(cmd.Context(), t.kind, namespace, t.name)
				var problem *client.Problem
				if ignore && errors.As(err, &problem) && problem.Status == http.StatusNotFound {
					continue
				}
				if err != nil {
					return err
				}
				kind := strings.ToLower(t.kind.Kind)
				if t.kind.Group != "" {
					kind += "." + t.kind.Group
				}
				fmt.Fprintf(s.out, "%s %q deleted\n", kind, t.name)
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "file, directory, or - for standard input")
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "go into subdirectories")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check everything, delete nothing")
	cmd.Flags().BoolVar(&onlyHere, "here", false, hereUsage)
	cmd.Flags().BoolVar(&ignore, "ignore-not-found", false, "pass over what does not exist")
	s.namespaceFlag(cmd)
	return cmd
}

// namedTarget is an object named on the command line.
type namedTarget struct {
	kind *objects.Kind
	name string
}

// parseTargets reads KIND NAME... and KIND/NAME....
func parseTargets(args []string) ([]namedTarget, error) {
	if len(args) == 0 {
		return nil, usageError{errors.New("say what: KIND NAME, KIND/NAME or -f FILE")}
	}
	if !strings.Contains(args[0], "/") {
		kind, err := objects.FindKind(args[0])
		if err != nil {
			return nil, usageError{err}
		}
		if len(args) == 1 {
			return nil, usageError{fmt.Errorf("say which %s", kind.Plural)}
		}
		out := make([]namedTarget, 0, len(args)-1)
		for _, name := range args[1:] {
			out = append(out, namedTarget{kind, name})
		}
		return out, nil
	}
	var out []namedTarget
	for _, arg := range args {
		kindName, name, ok := strings.Cut(arg, "/")
		if !ok || name == "" {
			return nil, usageError{fmt.Errorf("%q is not of the form KIND/NAME", arg)}
		}
		kind, err := objects.FindKind(kindName)
		if err != nil {
			return nil, usageError{err}
		}
		out = append(out, namedTarget{kind, name})
	}
	return out, nil
}
