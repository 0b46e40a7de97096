package objects

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateExamples = flag.Bool("update-examples", false, "write testdata/gateway-api-examples.txt anew")

// TestExamplesOfGatewayAPI decodes each example that Gateway API ships with. testdata/gateway-api-examples.txt has what is taken of each
// file, and why the rest is refused: with the field's path and what to do.
func TestExamplesOfGatewayAPI(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatalf("look for the module: %v", err)
	}
	root := filepath.Join(strings.TrimSpace(string(dir)), "examples")
	var out strings.Builder
	files := 0
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		files++
		text, err := os.Open(path)
		if err != nil {
			return err
		}
		defer text.Close()
		name, _ := filepath.Rel(root, path)
		objs, errs := Decode(text, filepath.Base(path), "")
		fmt.Fprintf(&out, "%s: %d taken\n", name, len(objs))
		for _, err := range errs {
			var e *Error
			if !errors.As(err, &e) || e.Path == "" || e.Problem == "" || e.Remedy == "" {
				t.Errorf("%s: %v names no field or no remedy", name, err)
			}
			fmt.Fprintf(&out, "  %v\n", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 70 {
		t.Errorf("%d examples: too few, they must be elsewhere", files)
	}
	const golden = "testdata/gateway-api-examples.txt"
	if *updateExamples {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("another answer (-want +got; go test ./control/objects -run Examples -update-examples writes it):\n%s", diff)
	}
}
