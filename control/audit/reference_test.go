package audit

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func reference(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/access.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheReferenceNamesAllActions(t *testing.T) {
	row := regexp.MustCompile(`(?m)^\| .action. \| (.*) \|$`).FindStringSubmatch(reference(t))
	if row == nil {
		t.Fatal("no row of actions")
	}
	var named []Action
	for _, name := range strings.Split(row[1], ", ") {
		named = append(named, Action(strings.TrimSuffix(strings.Trim(name, "`"), "…")))
	}
	if !slices.Equal(named, Actions) {
		t.Errorf("the reference names %q, records can have %q", named, Actions)
	}
}

func TestTheReferenceHasTheBounds(t *testing.T) {
	page := reference(t)
	for _, row := range []string{
		fmt.Sprintf("of changes and of signings each | %d MiB, %d |", defaultSize>>20, defaultKeep),
		fmt.Sprintf("| the same of refusals | %d MiB, %d |", refusedSize>>20, refusedKeep),
		fmt.Sprintf("| refusals recorded | %d at once, %d a second |", refusalBurst, 1e9/refusalInterval.Nanoseconds()),
		fmt.Sprintf("root on the socket: none | %d MiB at once, %d KiB a second |", changesBurst>>20, changesPerSecond>>10),
		fmt.Sprintf("those beyond share one | %d |", maxCallers),
		fmt.Sprintf("| readers of the audit log | %d |", maxReaders),
		fmt.Sprintf("| newest records asked for at once; all of them have no bound | %d |", MaxLimit),
	} {
		if !strings.Contains(page, row) {
			t.Errorf("the reference does not say %q", row)
		}
	}
}

// An action is one of the constants, which Actions has all of: a literal elsewhere would be in no list.
func TestActionsAreConstants(t *testing.T) {
	declared := map[Action]bool{}
	sources, err := filepath.Glob("../*/*.go")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	files := token.NewFileSet()
	for _, path := range sources {
		imports := false
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			imports = imports || i.Path.Value == `"heddle.io/heddle/control/audit"`
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if kind, ok := n.Type.(*ast.Ident); ok && kind.Name == "Action" && filepath.Base(path) == "actions.go" {
					value, err := strconv.Unquote(n.Values[0].(*ast.BasicLit).Value)
					if err != nil {
						t.Error(err)
					}
					declared[Action(value)] = true
				}
			case *ast.KeyValueExpr:
				key, ok := n.Key.(*ast.Ident)
				if _, literal := n.Value.(*ast.BasicLit); ok && literal && imports && (key.Name == "Action" || key.Name == "verb") && !strings.HasSuffix(path, "_test.go") {
					t.Errorf("%s: an action is written out", files.Position(n.Pos()))
				}
			case *ast.BasicLit:
				text, err := strconv.Unquote(n.Value)
				if err == nil && imports && n.Kind == token.STRING && strings.Contains(text, ".") && slices.Contains(Actions, Action(text)) && !strings.HasSuffix(path, "_test.go") {
					t.Errorf("%s: %q is written out", files.Position(n.Pos()), text)
				}
			}
			return true
		})
	}
	if len(declared) != len(Actions) {
		t.Errorf("%d actions are declared, %d listed", len(declared), len(Actions))
	}
	for _, a := range Actions {
		if !declared[a] {
			t.Errorf("%q is listed and not declared", a)
		}
	}
}
