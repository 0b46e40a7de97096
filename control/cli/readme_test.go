package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var documents = []string{"../../README.md", "../../CONTRIBUTING.md", "../../ARCHITECTURE.md", "../../SECURITY.md", "../../docs/reference/limits.md", "../../demo/boutique/README.md", "../../bench/README.md", "../../proxy/fuzz/README.md"}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every `heddle` command of the documents must be one, with flags that it has.
func TestDocumentsNameCommandsThatExist(t *testing.T) {
	command := regexp.MustCompile(`(?m)^ {4}(?:.*&& )?(?:[a-z-]*\$ )?(?:sudo )?(?:\./bin/)?heddle ([^#\n]+)`)
	found := 0
	for _, document := range documents {
		for _, match := range command.FindAllStringSubmatch(read(t, document), -1) {
			found++
			args := strings.Fields(match[1])
			root := (&session{in: strings.NewReader(""), out: new(bytes.Buffer), err: new(bytes.Buffer)}).root()
			cmd, rest, err := root.Find(args)
			if err != nil || cmd == root {
				t.Errorf("%s: heddle %s: no such command: %v", document, match[1], err)
				continue
			}
			if err := cmd.ParseFlags(rest); err != nil {
				t.Errorf("%s: heddle %s: %v", document, match[1], err)
			}
		}
	}
	if found < 15 {
		t.Errorf("found %d commands: the pattern no longer fits the documents", found)
	}
}

// Every make target of the documents must exist.
func TestDocumentsNameTargetsThatExist(t *testing.T) {
	target := regexp.MustCompile("(?m)(?:^ {4}|`)make ([a-z0-9-]+)")
	makefile := read(t, "../../Makefile")
	for _, document := range documents {
		for _, match := range target.FindAllStringSubmatch(read(t, document), -1) {
			if !strings.Contains(makefile, "\n"+match[1]+":") {
				t.Errorf("%s: make %s: no such target", document, match[1])
			}
		}
	}
}

// Every file that the documents link to, and every path that ARCHITECTURE.md names, must exist.
func TestDocumentsNameFilesThatExist(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)\)`)
	path := regexp.MustCompile("`((?:control|proxy|test|bench|demo|docs|scripts)/[a-zA-Z0-9_./-]+)`")
	for _, document := range documents {
		text := read(t, document)
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(document), match[1])); err != nil {
				t.Errorf("%s: link: %v", document, err)
			}
		}
		if !strings.HasSuffix(document, "ARCHITECTURE.md") {
			continue
		}
		for _, match := range path.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("../..", match[1])); err != nil {
				t.Errorf("%s: path: %v", document, err)
			}
		}
	}
}

// The scripts that make calls must be valid for the shell that they name.
func TestScriptsParse(t *testing.T) {
	scripts, err := filepath.Glob("../../scripts/*.sh")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%v, %v", scripts, err)
	}
	for _, script := range scripts {
		if out, err := exec.Command("bash", "-n", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
}

// Crates that may have unsafe code are those that do not forbid it, and the documents name them.
func TestDocumentsNameTheCratesWithUnsafeCode(t *testing.T) {
	libraries, err := filepath.Glob("../../proxy/crates/*/src/lib.rs")
	if err != nil || len(libraries) == 0 {
		t.Fatalf("no crates: %v", err)
	}
	var crates []string
	for _, library := range libraries {
		if !strings.Contains(read(t, library), "\n#![forbid(unsafe_code)]\n") {
			crates = append(crates, filepath.Base(filepath.Dir(filepath.Dir(library))))
		}
	}
	for file, sentence := range map[string]*regexp.Regexp{
		"../../SECURITY.md":     regexp.MustCompile("`unsafe` stands in six crates of the proxy \\(([^)]*)\\)"),
		"../../CONTRIBUTING.md": regexp.MustCompile("`unsafe` is allowed in `proxy/crates/(.*) only;"),
	} {
		match := sentence.FindStringSubmatch(read(t, file))
		if match == nil {
			t.Errorf("%s does not say which crates have unsafe code: %s", file, sentence)
			continue
		}
		named := strings.FieldsFunc(strings.ReplaceAll(match[1], " and ", ""), func(r rune) bool { return strings.ContainsRune("`, ", r) })
		if !slices.Equal(named, crates) || len(crates) != 6 {
			t.Errorf("%s names %q; %q do not forbid it", file, named, crates)
		}
	}
}
