package subject

import (
	"os"
	"strings"
	"testing"
)

// TestKinds holds the table of listeners in the README against those that there are.
func TestKinds(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range append(Kinds, "policies", "buffered") {
		if !strings.Contains(string(text), "`"+kind+"`") {
			t.Errorf("the README says nothing about the listener %q", kind)
		}
	}
}
