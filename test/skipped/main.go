// Command skipped lists the tests that a run of `make test` left out, each with its reason, from what the runs wrote into
// a folder: *.json in the form of test2json, *.log with lines that begin with "skipped: ".
//
// Root with network namespaces lacks nothing that a test needs, so there it fails when any was left out.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// skip is a test that was left out.
type skip struct{ test, reason string }

func main() {
	if err := run(os.Args[1:], os.Stdout, namespaces()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// namespaces says whether everything that a test may need can be had: root, and network namespaces.
func namespaces() bool {
	// This thread's own, which end with the process.
	return os.Geteuid() == 0 && unix.Unshare(unix.CLONE_NEWNET) == nil
}

func run(args []string, out io.Writer, all bool) error {
	if len(args) != 1 {
		return errors.New("usage: skipped FOLDER")
	}
	found, files, err := collect(args[0])
	if err != nil {
		return err
	}
	if files == 0 {
		return fmt.Errorf("%s holds no results of tests; run `make test`", args[0])
	}
	for _, s := range found {
		fmt.Fprintf(out, "SKIP %s: %s\n", s.test, s.reason)
	}
	fmt.Fprintf(out, "skipped tests: %d\n", len(found))
	if all && len(found) > 0 {
		return fmt.Errorf("%d tests were skipped, although root with network namespaces has all that they need", len(found))
	}
	return nil
}

// collect reads every result in a folder.
func collect(dir string) (found []skip, files int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range entries {
		read := map[string]func(io.Reader) ([]skip, error){".json": readEvents, ".log": readLog}[filepath.Ext(e.Name())]
		if read == nil {
			continue
		}
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, 0, err
		}
		more, err := read(f)
		f.Close()
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", f.Name(), err)
		}
		found, files = append(found, more...), files+1
	}
	slices.SortFunc(found, func(a, b skip) int { return strings.Compare(a.test, b.test) })
	return found, files, nil
}

// event is a line of test2json (go doc test2json).
type event struct{ Action, Package, Test, Output string }

// readEvents finds the tests that were skipped. A package without tests is none.
func readEvents(r io.Reader) ([]skip, error) {
	var found []skip
	said := map[string][]string{}
	decoder := json.NewDecoder(r)
	for {
		var e event
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		name := e.Package + " " + e.Test
		switch {
		case e.Test == "":
		case e.Action == "output":
			text := strings.TrimSpace(e.Output)
			if text != "" && !strings.HasPrefix(text, "===") && !strings.HasPrefix(text, "---") {
				said[name] = append(said[name], text)
			}
		case e.Action == "skip":
			reason := strings.Join(said[name], "; ")
			if reason == "" {
				reason = "without a reason"
			}
			found = append(found, skip{name, reason})
		}
	}
}

// readLog finds what tests say of themselves, under the name that Rust's test program puts above a test's output.
func readLog(r io.Reader) ([]skip, error) {
	var found []skip
	name := ""
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if header, ok := strings.CutPrefix(line, "---- "); ok {
			name = strings.TrimSuffix(strings.TrimSuffix(header, " ----"), " stdout")
		}
		if text, ok := strings.CutPrefix(line, "skipped: "); ok {
			test, reason := name, text
			if test == "" {
				test, reason, _ = strings.Cut(text, ": ")
			}
			found = append(found, skip{test, reason})
		}
	}
	return found, lines.Err()
}
