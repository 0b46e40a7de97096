package server

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// route is what [New] serves at a pattern.
type route struct {
	pattern string
	// guard is how it is held against who asks: "route", "agentsOnly", "handleAgent"; empty is not at all.
	guard string
	// anybody may ask.
	anybody bool
	handler string
}

// routes reads what New serves, and which functions of the package record what they do, by themselves or by what they call.
func routes(t *testing.T) (served []route, recording map[string]bool) {
	t.Helper()
	packages, err := parser.ParseDir(token.NewFileSet(), ".", nil, 0) //nolint:staticcheck // One folder, whose build tags do not matter.
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string][]string{}
	for name, file := range packages["server"].Files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					calls[f.Name.Name] = append(calls[f.Name.Name], n.Sel.Name)
				case *ast.CallExpr:
					if name := called(n); f.Name.Name == "New" && (name == "route" || name == "HandleFunc") {
						if r := routeOf(n, name); r.guard != "guarded" { // What route itself does.
							served = append(served, r)
						}
					}
				}
				return true
			})
		}
	}
	recording = map[string]bool{"recorded": true, "Signed": true}
	for grown := true; grown; {
		grown = false
		for f, all := range calls {
			if !recording[f] && slices.ContainsFunc(all, func(name string) bool { return recording[name] }) {
				recording[f], grown = true, true
			}
		}
	}
	return served, recording
}

func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

func routeOf(call *ast.CallExpr, name string) route {
	var r route
	switch pattern := call.Args[0].(type) {
	case *ast.BasicLit:
		r.pattern, _ = strconv.Unquote(pattern.Value)
	case *ast.Ident:
		r.pattern = pattern.Name
	}
	handler := call.Args[len(call.Args)-1]
	switch inner, ok := handler.(*ast.CallExpr); {
	case name == "route":
		need, _ := call.Args[1].(*ast.Ident)
		r.guard, r.anybody = name, need != nil && need.Name == "anybody"
	case ok:
		r.guard = called(inner)
		if handler = inner.Fun; r.guard == "agentsOnly" {
			handler = inner.Args[len(inner.Args)-1]
		}
	}
	if h, ok := handler.(*ast.SelectorExpr); ok {
		r.handler = h.Sel.Name
	}
	return r
}

// Whatever is served is held against who asks, is one of [everything], which the tests of roles and of secrets go through, and
// is recorded where it changes something.
func TestEveryRouteIsGuardedTriedAndRecorded(t *testing.T) {
	served, recording := routes(t)
	if len(served) < 35 || !recording["handleApply"] || recording["handleReplicas"] {
		t.Fatalf("%d routes are known, and that %d functions record", len(served), len(recording))
	}
	tried := http.NewServeMux()
	for _, r := range served {
		if pattern := r.pattern; pattern != "agentPrefix" {
			tried.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
		}
	}
	tries := map[string]bool{}
	for _, e := range everything {
		request, err := http.NewRequest(e.method, e.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, pattern := tried.Handler(request)
		tries[pattern] = true
	}
	for _, r := range served {
		agents := r.guard == "agentsOnly" || r.guard == "handleAgent"
		if r.guard != "route" && !agents {
			t.Errorf("%s is served to everybody: use route, or agentsOnly", r.pattern)
		}
		if !tries[r.pattern] && !r.anybody && r.pattern != "agentPrefix" {
			t.Errorf("%s is not among everything that is tried", r.pattern)
		}
		method, _, _ := strings.Cut(r.pattern, " ")
		changes := r.guard == "handleAgent" || method == r.pattern && r.handler == "handleObjects" || method != r.pattern && method != http.MethodGet
		if changes && !recording[r.handler] && unrecorded[r.pattern] == "" {
			t.Errorf("%s changes something, and %s does not record it (s.recorded)", r.pattern, r.handler)
		}
	}
}

// unrecorded are the routes that change something and record nothing, and why.
var unrecorded = map[string]string{
	"PUT /heddle/v1/report":           "what runs where, several times a second",
	"PUT /heddle/v1/report/changes":   "what of it changed",
	"PUT /heddle/v1/report/unchanged": "that it does still",
}
