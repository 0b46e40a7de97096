package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

func (s *session) applyCommand() *cobra.Command {
	var files []string
	var dryRun, recursive, onlyHere bool
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Create or change objects from files", Args: cobra.NoArgs,
		Long: "Create or change objects from files, directories or standard input.\n\n" +
			"Everything given is checked and written as a whole: when anything is wrong, nothing is changed.\n\n" +
			"An object goes to the cluster that its label " + objects.LabelCluster + " names, if that runs on this machine, and otherwise to the\n" +
			"current context's; a GlobalNamespace to the primary. With several, all of them check first. With --cluster or\n" +
			"$HEDDLE_CLUSTER, everything goes there, and objects labelled for another cluster are refused. Between machines, run the\n" +
			"same command with --here on each.",
		Example: "  heddle apply -f demo/boutique/manifests/\n  heddle apply -f demo/boutique/two-clusters/\n  heddle apply -f route.yaml --dry-run\n  cat shop.yaml | heddle apply -f -",
		RunE: func(cmd *cobra.Command, _ []string) error {
			manifests, err := readManifests(files, recursive, s.in)
			if err != nil {
				return err
			}
			shares, err := s.shares(cmd.Context(), manifests, onlyHere)
			if err != nil {
				return err
			}
			return s.writeShares(cmd.Context(), shares, client.ApplyRequest{Namespace: s.namespace, DryRun: dryRun, User: userName()})
		},
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "file, directory, or - for standard input; may be given several times")
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "go into subdirectories")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check everything, change nothing")
	cmd.Flags().BoolVar(&onlyHere, "here", false, hereUsage)
	s.namespaceFlag(cmd)
	return cmd
}

// hereUsage of the flag --here.
const hereUsage = "pass over objects of clusters that do not run on this machine (with --cluster: of other clusters)"

// printResults says what became of each object; where is the cluster, when there are several.
func (s *session) printResults(response client.ApplyResponse, where string) {
	suffix := ""
	if where != "" {
		suffix = " in " + where
	}
	if response.DryRun {
		suffix += " (dry run)"
	}
	for _, r := range response.Results {
		s.printWarnings(r)
		if r.Action == client.ActionDeleted {
			kind, name, _ := strings.Cut(r.Name(), "/")
			fmt.Fprintf(s.out, "%s %q deleted%s\n", kind, name, suffix)
			continue
		}
		fmt.Fprintf(s.out, "%s %s%s\n", r.Name(), r.Action, suffix)
	}
}

func (s *session) printWarnings(r client.Result) {
	for _, w := range r.Warnings {
		fmt.Fprintf(s.err, "Warning: %s: %s\n", r.Name(), w)
	}
}

// manifestEndings are the files taken from a directory.
var manifestEndings = []string{".yaml", ".yml", ".json"}

// readManifests reads files, directories (their manifests, in the order of their names) and standard input.
func readManifests(files []string, recursive bool, in io.Reader) ([]client.Manifest, error) {
	if len(files) == 0 {
		return nil, usageError{errors.New("say what to read with -f FILE, -f DIRECTORY or -f -")}
	}
	var out []client.Manifest
	read := func(path string) error {
		content, err := readBounded(path, in)
		if err != nil {
			return err
		}
		name := path
		if path == "-" {
			name = "standard input"
		}
		out = append(out, client.Manifest{File: name, Content: content})
		return nil
	}
	for _, path := range files {
		if path == "-" {
			if err := read(path); err != nil {
				return nil, err
			}
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, &client.Problem{What: "the file cannot be read", Where: path, Why: reason(err), Remedy: "check the path after -f"}
		}
		if !info.IsDir() {
			if err := read(path); err != nil {
				return nil, err
			}
			continue
		}
		before := len(out)
		err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && p != path && !recursive:
				return fs.SkipDir
			case !d.IsDir() && slices.Contains(manifestEndings, filepath.Ext(p)):
				return read(p)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(out) == before {
			return nil, &client.Problem{What: "the directory holds no manifests", Where: path, Why: "manifests end in " + strings.Join(manifestEndings, ", "), Remedy: "name another directory, or add -R for its subdirectories"}
		}
	}
	return out, nil
}

func readBounded(path string, in io.Reader) (string, error) {
	reader := in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", &client.Problem{What: "the file cannot be read", Where: path, Why: reason(err)}
		}
		defer f.Close()
		reader = f
	}
	content, err := io.ReadAll(io.LimitReader(reader, objects.MaxManifest+1))
	if err != nil {
		return "", &client.Problem{What: "the file cannot be read", Where: path, Why: reason(err)}
	}
	if len(content) > objects.MaxManifest {
		return "", &client.Problem{What: "the file is too large", Where: path, Why: fmt.Sprintf("the limit is %d MiB", objects.MaxManifest>>20), Remedy: "split it"}
	}
	return string(content), nil
}

// reason is an error's cause without the path, which is said elsewhere.
func reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

func userName() string {
	if name := os.Getenv("SUDO_USER"); name != "" {
		return name
	}
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.Username
}
