package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/server/client"
)

// contextFile remembers which cluster commands are about: ~/.config/heddle/config.yaml.
type contextFile struct {
	path string
	// here lists the clusters of this machine; nil means [clustersHere].
	here func() []string
}

// clusters lists the clusters that run on this machine.
func (f contextFile) clusters() []string {
	if f.here != nil {
		return f.here()
	}
	return clustersHere()
}

// contextContent is the file's content.
type contextContent struct {
	Current string `json:"current,omitempty"`
}

func contextPath() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "heddle", "config.yaml")
}

func (f contextFile) read() (contextContent, error) {
	var content contextContent
	text, err := os.ReadFile(f.path)
	if errors.Is(err, os.ErrNotExist) || f.path == "" {
		return content, nil
	}
	if err != nil {
		return content, fmt.Errorf("read context: %w", err)
	}
	if err := yaml.UnmarshalStrict(text, &content); err != nil {
		return content, fmt.Errorf("%s: %w; correct or remove the file", f.path, err)
	}
	return content, nil
}

func (f contextFile) write(content contextContent) error {
	if f.path == "" {
		return errors.New("no home directory to keep the context in; use --cluster or set HOME")
	}
	if content == (contextContent{}) {
		if err := durable.Remove(f.path); err != nil {
			return fmt.Errorf("forget context: %w", err)
		}
		return nil
	}
	text, err := yaml.Marshal(content)
	if err != nil {
		return fmt.Errorf("encode context: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return fmt.Errorf("keep context: %w", err)
	}
	if err := durable.Write(f.target(), text, 0o600); err != nil {
		return fmt.Errorf("keep context: %w", err)
	}
	return nil
}

// target is the file itself where the path is a link to it, as when people keep their settings elsewhere.
func (f contextFile) target() string {
	if real, err := filepath.EvalSymlinks(f.path); err == nil {
		return real
	}
	return f.path
}

// choose decides which cluster is meant: the flag, the environment, the current context, or the only one here.
func (f contextFile) choose(flag, environment string) (string, error) {
	for _, name := range []string{flag, environment} {
		if name != "" {
			return name, nil
		}
	}
	content, err := f.read()
	if err != nil {
		return "", err
	}
	if content.Current != "" {
		return content.Current, nil
	}
	here := f.clusters()
	switch len(here) {
	case 0:
		return "", &client.Problem{What: "no cluster runs here", Where: cluster.DefaultRunRoot, Remedy: "start one with `sudo heddle up --name cluster1`"}
	case 1:
		return here[0], nil
	}
	return "", &client.Problem{What: "several clusters run here", Where: strings.Join(here, ", "), Remedy: "choose one with --cluster or `heddle context use <name>`"}
}

// clustersHere lists the clusters with a runtime directory on this machine.
func clustersHere() []string {
	entries, err := os.ReadDir(cluster.DefaultRunRoot)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if _, err := cluster.New(e.Name()); e.IsDir() && err == nil {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names
}

func (s *session) contextCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "context", Short: "Choose the cluster that commands are about", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(
		&cobra.Command{Use: "use NAME", Short: "Make a cluster the current one", Args: cobra.ExactArgs(1),
			ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
				return clustersHere(), cobra.ShellCompDirectiveNoFileComp
			},
			RunE: func(_ *cobra.Command, args []string) error {
				if _, err := cluster.New(args[0]); err != nil {
					return err
				}
				here := clustersHere()
				found := false
				for _, name := range here {
					found = found || name == args[0]
				}
				if !found {
					return &client.Problem{What: fmt.Sprintf("no cluster %q runs here", args[0]), Where: cluster.DefaultRunRoot, Why: "there are: " + strings.Join(here, ", "),
						Remedy: "start it with `sudo heddle up --name " + args[0] + "`"}
				}
				if err := s.contexts.write(contextContent{Current: args[0]}); err != nil {
					return err
				}
				fmt.Fprintf(s.out, "Switched to cluster %q.\n", args[0])
				return nil
			}},
		&cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the clusters of this machine", Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				content, err := s.contexts.read()
				if err != nil {
					return err
				}
				t := newTable("CURRENT", "NAME", "SOCKET")
				for _, name := range clustersHere() {
					c, err := cluster.New(name)
					if err != nil {
						continue
					}
					mark := ""
					if name == content.Current {
						mark = "*"
					}
					t.row(mark, name, c.APISocket())
				}
				return t.print(s.out)
			}},
		&cobra.Command{Use: "current", Short: "Print the current cluster's name", Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				c, err := s.cluster()
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(s.out, c.Name)
				return err
			}},
	)
	return cmd
}
