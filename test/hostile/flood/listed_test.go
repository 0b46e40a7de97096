package flood

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// TestEveryAttackRuns holds the attacks of this package, its exported variables, against those that floods_test.go runs.
func TestEveryAttackRuns(t *testing.T) {
	floods, err := parser.ParseFile(token.NewFileSet(), "../floods_test.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	runs := map[string]bool{}
	ast.Inspect(floods, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if of, ok := s.X.(*ast.Ident); ok && of.Name == "flood" {
				runs[s.Sel.Name] = true
			}
		}
		return true
	})
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	attacks := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for name, object := range file.Scope.Objects {
			if object.Kind != ast.Var || !ast.IsExported(name) {
				continue
			}
			attacks++
			if !runs[name] {
				t.Errorf("%s: floodings in ../floods_test.go does not run %s", e.Name(), name)
			}
		}
	}
	if attacks < 15 {
		t.Errorf("only %d attacks are known", attacks)
	}
}
