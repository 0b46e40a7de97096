//go:build e2e

package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The README's commands work as they stand there. Those that start and end the cluster are what TestMain runs.
func TestReadmeCommands(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("../..") // Where a user stands who types them.
	ran := 0
	for _, match := range regexp.MustCompile(`(?m)^ {4}.*sudo \./bin/heddle ([^#\n]+)`).FindAllStringSubmatch(string(readme), -1) {
		args := strings.Fields(match[1])
		if args[0] == "up" || args[0] == "down" {
			continue
		}
		ran++
		if out := must(t, args...); out == "" {
			t.Errorf("heddle %s prints nothing", match[1])
		}
	}
	if ran < 4 {
		t.Errorf("ran %d commands: the pattern no longer fits the README", ran)
	}
}
