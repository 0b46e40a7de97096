package server

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"heddle.io/heddle/control/access"
)

// served are the rows of what requests beside those for objects need, from the routes themselves and what is passed on to the
// agent.
func served(t *testing.T) (rows []string) {
	t.Helper()
	seen := map[string]bool{}
	row := func(to, role, where string) {
		if line := fmt.Sprintf("| %s | %s | %s |", to, role, where); !seen[line] {
			seen[line] = true
			rows = append(rows, line)
		}
	}
	file, err := parser.ParseFile(token.NewFileSet(), "server.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	text := func(e ast.Expr) string {
		literal, ok := e.(*ast.BasicLit)
		if !ok {
			t.Fatalf("%T where a text should be", e)
		}
		s, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	wheres := map[string]string{"everywhere": "all namespaces", "within": "the namespace", "somewhere": "any namespace"}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch f := call.Fun.(type) {
		case *ast.Ident:
			if f.Name != "route" || text(call.Args[0]) == "/" {
				return true // The last is what paths need that there are not.
			}
			switch need := call.Args[1].(type) {
			case *ast.Ident: // anybody, and needOfObjects, whose rows are the table of roles.
				if need.Name == "anybody" {
					row("`"+text(call.Args[0])+"`", "none", "")
				}
			case *ast.CallExpr:
				role, ok := need.Args[0].(*ast.SelectorExpr)
				where := wheres[need.Fun.(*ast.Ident).Name]
				if !ok || where == "" {
					t.Fatalf("%s needs what is not known", text(call.Args[0]))
				}
				row(text(need.Args[1]), strings.ToLower(role.Sel.Name), where)
			}
		case *ast.SelectorExpr:
			if f.Sel.Name == "agentsOnly" {
				row(text(call.Args[0]), "the agent only", "")
			}
		}
		return true
	})
	for _, e := range append(slices.Clone(everything), endpoint{"GET", agentPrefix + "replicas/shop/cart-0/admin/logging"}) {
		if path, is := strings.CutPrefix(e.path, agentPrefix); is {
			need, _ := needOfAgent(e.method, path)
			where := "the namespace"
			switch {
			case need.Somewhere:
				where = wheres["somewhere"]
			case need.Namespace == access.Everywhere:
				where = wheres["everywhere"]
			}
			row(need.To, need.Role.String(), where)
		}
	}
	return rows
}

// Which role a request needs is a matter of its route, and the reference has each.
func TestTheReferenceHasTheRoles(t *testing.T) {
	content, err := os.ReadFile("../../docs/reference/access.md")
	if err != nil {
		t.Fatal(err)
	}
	const head = "| to | needs | in |\n| --- | --- | --- |\n"
	_, rest, ok := strings.Cut(string(content), head)
	if !ok {
		t.Fatal("no table of what requests need")
	}
	table, _, _ := strings.Cut(rest, "\n\n")
	want := served(t)
	if len(want) < 30 {
		t.Fatalf("%d rows are served", len(want))
	}
	if got := strings.Split(table, "\n"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the table is not what is served, which is\n%s", strings.Join(want, "\n"))
	}
}
