package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The table of attackers names the tests that try, and each of them is there.
func TestAttacksNameTheirTests(t *testing.T) {
	const page = "../../docs/design/0004-several-clusters.md"
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	defined := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, root := range []string{"../../control", "../../test"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, match := range declaration.FindAllSubmatch(source, -1) {
				defined[string(match[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, table, found := strings.Cut(string(content), "| Attacker |")
	table, _, ends := strings.Cut(table, "\n\n")
	if !found || !ends {
		t.Fatalf("%s has no table of attackers", page)
	}
	named := regexp.MustCompile("`(Test\\w+)`")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if rows++; rows <= 2 {
			continue // The head and the line below it.
		}
		if len(cells) != 4 {
			t.Errorf("%d cells, want 4: %s", len(cells), line)
			continue
		}
		tests := named.FindAllStringSubmatch(cells[3], -1)
		if tried := strings.TrimSpace(cells[3]); len(tests) == 0 && tried != "not withstood" && tried != "clusters of several hosts are not there yet" {
			t.Errorf("%s: no test, and %q for a reason", strings.TrimSpace(cells[0]), tried)
		}
		for _, match := range tests {
			if !defined[match[1]] {
				t.Errorf("%s: %s is no test", strings.TrimSpace(cells[0]), match[1])
			}
		}
	}
	for _, page := range []string{"../../SECURITY.md", "../../docs/design/0011-workload-isolation.md"} {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range named.FindAllStringSubmatch(string(content), -1) {
			if !defined[match[1]] {
				t.Errorf("%s: %s is no test", page, match[1])
			}
		}
	}
	if rows < 12 {
		t.Errorf("only %d attackers", rows)
	}
}
