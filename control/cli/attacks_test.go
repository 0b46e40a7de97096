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
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 || strings.HasPrefix(cells[0], "---") {
			continue
		}
		rows++
		for _, match := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(cells[3], -1) {
			if !defined[match[1]] {
				t.Errorf("%s: %s is no test", strings.TrimSpace(cells[0]), match[1])
			}
		}
	}
	if rows < 8 {
		t.Errorf("only %d attackers", rows)
	}
}
