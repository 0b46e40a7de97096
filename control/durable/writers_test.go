package durable_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// elsewhere lists the functions that write files by other means than this package, and why.
var elsewhere = map[string]string{
	"control/agent/isolation/mounts.go pin":                  "an empty file to mount on",
	"control/agent/lock/lock.go Take":                        "a lock belongs to the file, which is never replaced",
	"control/agent/network/namespace.go Adopt":               "an empty file to mount on",
	"control/agent/network/namespace.go create":              "an empty file to mount on",
	"control/agent/network/namespace.go sysctl":              "a setting of the kernel",
	"control/agent/preflight/machine.go forwarding":          "tries whether a setting can be written",
	"control/agent/process/cgroup.go Create":                 "a setting of the kernel",
	"control/agent/process/cgroup.go delegate":               "a setting of the kernel",
	"control/agent/process/launch.go enter":                  "a setting of the kernel",
	"control/agent/process/processtest/processtest.go Enter": "a setting of the kernel",
	"control/agent/process/log.go rotate":                    "logs, which their processes hold open",
	"control/agent/process/process.go Start":                 "a log, appended to",
	"control/agent/sandbox/mounts.go devices":                "links in a /dev of its own",
	"control/agent/sandbox/mounts.go show":                   "an empty file to mount on",
	"control/agent/sandbox/rebuild.go bind":                  "an empty file to mount on, in memory",
	"control/agent/sandbox/rebuild.go fill":                  "links in a directory of its own, in memory",
	"control/audit/file.go open":                             "the audit log, appended to and synced",
	"control/audit/file.go setAside":                         "the audit log's older files",
	"control/cli/up_start.go startAgent":                     "a log, appended to",
	"control/seal/memory.go OpenMemory":                      "memory, which no file is",
	"control/store/etcd/etcdtest/members.go Certificates":    "keys of a test, which end with it",
	"control/store/etcd/room.go keepReserve":                 "room on the disk, without content",
	"demo/tour/record.go openRecord":                         "locked: the lock belongs to the file, which is never replaced",
}

// writing are the functions that write files, by package; nil for all of a package.
var writing = map[string][]string{
	"os":       {"WriteFile", "Rename", "Create", "CreateTemp", "OpenFile", "Truncate", "Link", "Symlink"},
	"unix":     {"Open", "Openat", "Openat2", "Creat", "Rename", "Renameat", "Renameat2", "Link", "Linkat", "Symlink", "Symlinkat"},
	"syscall":  {"Open", "Openat", "Creat", "Rename", "Link", "Symlink"},
	"bbolt":    {"Open"},
	"renameio": nil,
}

// Whatever keeps something in a file keeps it by this package.
func TestNobodyWritesOtherwise(t *testing.T) {
	const root = "../.."
	found := map[string]bool{}
	for _, top := range []string{"control", "demo"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/durable/") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			relative, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			for _, declaration := range file.Decls {
				name := "(outside of functions)"
				if function, ok := declaration.(*ast.FuncDecl); ok {
					name = function.Name.Name
				}
				ast.Inspect(declaration, func(n ast.Node) bool {
					s, ok := n.(*ast.SelectorExpr)
					if !ok {
						return true
					}
					if p, ok := s.X.(*ast.Ident); ok {
						if names, ok := writing[p.Name]; ok && (names == nil || slices.Contains(names, s.Sel.Name)) {
							found[relative+" "+name] = true
						}
					}
					return true
				})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for where := range found {
		if elsewhere[where] == "" {
			t.Errorf("%s writes a file by itself: use package durable, or list it here with a reason", where)
		}
	}
	for where := range elsewhere {
		if !found[where] {
			t.Errorf("%s no longer writes: take it off the list", where)
		}
	}
}
