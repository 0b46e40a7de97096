package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"heddle.io/heddle/control/durable"
)

// key tells a process from every other of this machine's present boot.
func (r Record) key() string { return fmt.Sprintf("%d %d %s", r.PID, r.Ticks, r.Boot) }

// beganPath is where a launcher notes that it becomes the program.
func beganPath(file string) string { return strings.TrimSuffix(file, ".json") + ".began" }

// Began says whether the program of a launch file has begun as the recorded process.
func Began(file string, r Record) bool {
	content, err := os.ReadFile(beganPath(file))
	return err == nil && string(content) == r.key()
}

// Search is what is known of a process that an earlier agent started.
type Search struct {
	// Hierarchies and Group are where it runs, File is its launch file.
	Hierarchies Hierarchies
	Group, File string
	// Record is what was noted of it, nil for nothing.
	Record *Record
	// Lost says that the note could not be read: then what runs in the group is the truth, and the launch file says by
	// Label whether it is what is looked for.
	Lost  bool
	Label string
}

// Find finds a process again. ended says that it ran and is gone, so that starting it would be for the second time.
// Neither means that it never ran, and that nothing of it runs: what else is in its group is killed.
func Find(s Search) (p *Process, ended bool) {
	if s.Record != nil {
		if p := settled(*s.Record, s.File); p != nil {
			return p, false
		}
		ended = Began(s.File, *s.Record)
	}
	if s.Lost && labelled(s.File, s.Label) {
		for _, r := range s.leaders() {
			if p := settled(r, s.File); p != nil {
				return p, false
			}
		}
		// Nothing runs. Whoever began last has ended.
		content, err := os.ReadFile(beganPath(s.File))
		ended = err == nil && len(content) > 0
	}
	s.Hierarchies.KillMembers(s.Group)
	return nil, ended
}

// settled adopts a process once it is the program: a launcher, whose starter has died, becomes it or ends within moments.
func settled(r Record, file string) *Process {
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		p := Adopt(r)
		if p == nil || !launching(r.PID, file) {
			// Looked at once more: it may have ended as a launcher between the two.
			if p != nil && !r.Alive() && !Began(file, r) {
				return nil
			}
			return p
		}
		select {
		case <-p.Done():
		case <-look.C:
		case <-deadline.C:
			p.Stop(0)
			return nil
		}
	}
}

// launching says whether a process is still the launcher of a file.
func launching(pid int, file string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	arguments := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	return err == nil && len(arguments) > 1 && arguments[len(arguments)-1] == file
}

// labelled says whether a launch file describes what is looked for.
func labelled(file, label string) bool {
	var spec Spec
	return durable.ReadJSON(file, &spec) == nil && spec.Label == label
}

// leaders are the processes of the group that were started as such, oldest first: every launcher begins a session, and
// what the program starts stays in it.
func (s Search) leaders() []Record {
	seen := map[int]bool{}
	var out []Record
	for _, root := range s.Hierarchies.roots() {
		for _, pid := range Members(filepath.Join(root, s.Group)) {
			r, err := inspect(pid)
			if seen[pid] || err != nil || !leads(pid) {
				continue
			}
			seen[pid] = true
			if info, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				r.Started = info.ModTime()
			}
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b Record) int { return int(a.Ticks) - int(b.Ticks) })
	return out
}

// leads says whether a process leads a session.
func leads(pid int) bool {
	fields, err := stat(pid)
	return err == nil && fields[3] == strconv.Itoa(pid)
}

// stat reads the fields of /proc/<pid>/stat behind the name, which may hold anything.
func stat(pid int) ([]string, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	text := string(content)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return nil, errors.New("unexpected /proc/" + strconv.Itoa(pid) + "/stat")
	}
	return fields, nil
}
