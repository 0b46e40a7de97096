package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

//go:generate go test . -count=1 -run ^TestReferenceIsFresh$ -update

// referencePage is made of the commands themselves.
var referencePage = filepath.Join("..", "..", "docs", "reference", "cli.md")

// reference writes a page with every command that help shows.
func reference(t *testing.T) []byte {
	t.Helper()
	s := &session{in: strings.NewReader(""), out: io.Discard, err: io.Discard}
	root := s.root()
	root.DisableAutoGenTag = true
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	var page bytes.Buffer
	page.WriteString("# The command line\n\nMade of the commands' own help by `go generate ./control/cli`; do not edit.\n\n")
	var write func(*cobra.Command)
	write = func(cmd *cobra.Command) {
		if !cmd.IsAvailableCommand() && cmd != root {
			return
		}
		if cmd.Short == "" {
			t.Errorf("%s has no description", cmd.CommandPath())
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if strings.Contains(f.Usage, "`") {
				t.Errorf("%s --%s: what stands between backquotes is taken for the kind of value", cmd.CommandPath(), f.Name)
			}
		})
		var one bytes.Buffer
		if err := doc.GenMarkdownCustom(cmd, &one, func(file string) string {
			return "#" + strings.ReplaceAll(strings.TrimSuffix(file, ".md"), "_", "-")
		}); err != nil {
			t.Fatal(err)
		}
		// The last run of blank lines, and spaces at lines' ends, are no one's.
		for line := range strings.Lines(strings.TrimRight(one.String(), "\n")) {
			page.WriteString(strings.TrimRight(line, " \t\n") + "\n")
		}
		page.WriteString("\n")
		for _, c := range cmd.Commands() {
			write(c)
		}
	}
	write(root)
	return bytes.TrimRight(page.Bytes(), "\n")
}

func TestReferenceIsFresh(t *testing.T) {
	// Defaults that are taken from the environment are no part of the page.
	t.Setenv("HEDDLE_CLUSTER", "")
	got := append(reference(t), '\n')
	if *update {
		if err := os.WriteFile(referencePage, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(referencePage)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("%s is not what the commands say: run `go generate ./control/cli`", referencePage)
	}
}

// Every shell that cobra knows gets a script, which asks the program for objects' names.
func TestCompletionOfShells(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got, code := run(t, &api{}, "", "completion", shell); code != 0 || !strings.Contains(got, "__complete") {
			t.Errorf("%s: %d, %d bytes", shell, code, len(got))
		}
	}
	if got, code := runAs(t, &api{}, "", "__complete", "--cluster", "test", "describe", "services", "-n", "shop", ""); code != 0 || !strings.Contains(got, "cart") {
		t.Errorf("%d %s", code, got)
	}
}
