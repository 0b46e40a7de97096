package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"heddle.io/heddle/control/durable"
)

// starter is one agent's life in a process of its own: it finds what an earlier one started, or starts it, and is killed at
// a point of the start.
type starter struct {
	// Dir holds the launch file, the log, the record and what the program writes.
	Dir, Group string
	Command    []string
	Launcher   []string
	// Confined says that the program runs in a sandbox.
	Confined bool
	// Point at which it is killed; "" lets it end by itself.
	Point string
}

func (s starter) path(name string) string { return filepath.Join(s.Dir, name) }

const label = "what it is"

// run prints what became of it: found, ended, started.
func (s starter) run() error {
	reached = func(point string) {
		if point == s.Point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	h, err := Hierarchy()
	if err != nil {
		return err
	}
	search := Search{Hierarchies: h, Group: s.Group, File: s.path("app.json"), Label: label}
	var record Record
	switch err := ReadRecord(s.path("record.json"), &record); {
	case errors.Is(err, durable.ErrTorn):
		search.Lost = true
	case err == nil:
		search.Record = &record
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	if p, ended := Find(search); p != nil {
		fmt.Println("found")
		return nil
	} else if ended {
		fmt.Println("ended")
		return nil
	}
	dirs, _, err := h.Create(s.Group, Limits{})
	if err != nil {
		return err
	}
	spec := Spec{Command: s.Command, Env: []string{"PATH=/bin:/usr/bin"}, Cgroups: dirs, Label: label}
	if s.Confined {
		spec.UID, spec.GID, spec.Sandbox = someone, someone, &Sandbox{}
	}
	_, err = Start(spec, s.path("app.json"), s.path("app.log"), s.Launcher,
		func(r Record) error { return WriteRecord(s.path("record.json"), r) })
	if err == nil {
		fmt.Println("started")
	}
	return err
}

// live runs the starter in a process of its own and returns what it said.
func (s starter) live(t *testing.T) string {
	t.Helper()
	content, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(s.Launcher[0], "start", string(content)).CombinedOutput()
	var exit *exec.ExitError
	if s.Point == "" && err != nil || s.Point != "" && (!errors.As(err, &exit) || exit.String() != "signal: killed") {
		t.Fatalf("killed at %q: %v\n%s", s.Point, err, out)
	}
	return strings.TrimSpace(string(out))
}

// ran counts how often the program has begun.
func (s starter) ran(t *testing.T) int {
	t.Helper()
	content, err := os.ReadFile(s.path("app.log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(content), "it begins")
}

// newStarter makes one whose program writes a line when it begins, and then stays or ends.
func newStarter(t *testing.T, stays bool) starter {
	t.Helper()
	s := starter{Dir: t.TempDir(), Group: fmt.Sprintf("heddle-test-%d/%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", ".")), Launcher: launcher(t)}
	then := "exit 0"
	if stays {
		then = "exec sleep 1000"
	}
	s.Command = []string{"/bin/sh", "-c", "echo it begins; " + then}
	h, err := Hierarchy()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(h.Remove(s.Group), h.Remove(filepath.Dir(s.Group))); err != nil {
			t.Error(err)
		}
	})
	return s
}

func settle(t *testing.T, what string, holds func() bool) {
	t.Helper()
	limit, again := time.NewTimer(20*time.Second), time.NewTicker(time.Millisecond)
	defer limit.Stop()
	defer again.Stop()
	for !holds() {
		select {
		case <-limit.C:
			t.Fatal(what + ": not in time")
		case <-again.C:
		}
	}
}

// points are those of a start, in their order, and what the next starter finds of a program that stays.
var points = []struct{ name, stays, ends string }{
	{"described", "started", "started"},
	{"launched", "started", "started"},
	{"noted", "started", "started"},
	{"released", "found", "ended"},
	{"started", "found", "ended"},
}

// A starter that is killed anywhere leaves a program that runs once: the next one finds it, or starts it when it never ran.
func TestKilledAtEachPointOfAStart(t *testing.T) {
	for i := range 4 * len(points) {
		point, stays, confined := points[i/4], i%2 == 0, i/2%2 == 0
		t.Run(fmt.Sprintf("%s, stays %v, confined %v", point.name, stays, confined), func(t *testing.T) {
			s := newStarter(t, stays)
			s.Point, s.Confined = point.name, confined
			s.live(t)
			want := point.stays
			if !stays {
				want = point.ends
				if want == "ended" {
					settle(t, "the program's end", func() bool { return s.ran(t) == 1 && !s.runs(t) })
				}
			}
			s.Point = ""
			if got := s.live(t); got != want {
				t.Errorf("the next one: %s, want %s", got, want)
			}
			settle(t, "the program's beginning", func() bool { return s.ran(t) > 0 })
			after := "found"
			if !stays {
				settle(t, "the program's end", func() bool { return !s.runs(t) })
				after = "ended"
			}
			if got := s.live(t); got != after {
				t.Errorf("the one after: %s, want %s", got, after)
			}
			if n := s.ran(t); n != 1 {
				t.Errorf("it ran %d times", n)
			}
		})
	}
}

// runs says whether anything is in the group.
func (s starter) runs(t *testing.T) bool {
	t.Helper()
	h, err := Hierarchy()
	if err != nil {
		t.Fatal(err)
	}
	return h.Populated(s.Group)
}

// A record that is torn is repaired from what runs: the group's members, and the launcher's note of those that have ended.
func TestTornRecordIsRepairedFromWhatRuns(t *testing.T) {
	for i := range 4 {
		stays, confined := i%2 == 0, i/2 == 0
		t.Run(fmt.Sprintf("stays %v, confined %v", stays, confined), func(t *testing.T) {
			s := newStarter(t, stays)
			s.Confined = confined
			if got := s.live(t); got != "started" {
				t.Fatal(got)
			}
			settle(t, "the program's beginning", func() bool { return s.ran(t) == 1 })
			want := "found"
			if !stays {
				settle(t, "the program's end", func() bool { return !s.runs(t) })
				want = "ended"
			}
			whole, err := os.ReadFile(s.path("record.json"))
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{0, 1, len(whole) / 2, len(whole) - 2} {
				if err := os.WriteFile(s.path("record.json"), whole[:n], 0o600); err != nil {
					t.Fatal(err)
				}
				if got := s.live(t); got != want {
					t.Errorf("cut at %d of %d: %s, want %s", n, len(whole), got, want)
				}
			}
			if n := s.ran(t); n != 1 {
				t.Errorf("it ran %d times", n)
			}
		})
	}
}

// What runs in the group and is something else is no match, and makes room.
func TestFindRefusesAnother(t *testing.T) {
	s := newStarter(t, true)
	if got := s.live(t); got != "started" {
		t.Fatal(got)
	}
	h, err := Hierarchy()
	if err != nil {
		t.Fatal(err)
	}
	search := Search{Hierarchies: h, Group: s.Group, File: s.path("app.json"), Label: "something else", Lost: true}
	if p, ended := Find(search); p != nil || ended {
		t.Errorf("%+v, %v", p, ended)
	}
	settle(t, "the end of what was in the group", func() bool { return !s.runs(t) })
}

// A note that cannot be kept keeps the program from running.
func TestNoteFails(t *testing.T) {
	s := newStarter(t, true)
	full := errors.New("no space left on device")
	_, err := Start(Spec{Command: s.Command, Env: []string{"PATH=/bin:/usr/bin"}}, s.path("app.json"), s.path("app.log"), s.Launcher, func(Record) error { return full })
	if !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
	if n := s.ran(t); n != 0 {
		t.Errorf("it ran %d times", n)
	}
}
