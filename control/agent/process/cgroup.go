package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Limits are upper bounds for a control group; zero means none.
type Limits struct {
	// MilliCPU is thousandths of a core.
	MilliCPU int64
	// Memory in bytes.
	Memory int64
	// PIDs is how many processes and threads.
	PIDs int64
}

// Hierarchies are the control group mounts of this machine that can bound a process: one directory per version 1
// controller, and the version 2 mount with the controllers it offers.
type Hierarchies struct {
	V1        map[string]string
	V2        string
	V2Offered map[string]bool
}

// ErrNoVersion2 says what eBPF programs of a control group lack.
var ErrNoVersion2 = errors.New("no cgroup version 2 is mounted; mount cgroup2 on /sys/fs/cgroup, or on /sys/fs/cgroup/unified beside version 1")

// controllers that workloads are bounded by.
var controllers = []string{"cpu", "memory", "pids"}

// DetectHierarchies reads a mount table in the form of /proc/self/mountinfo and asks the version 2 mount what it
// offers.
func DetectHierarchies(mountinfo string) Hierarchies {
	h := Hierarchies{V1: map[string]string{}, V2Offered: map[string]bool{}}
	for _, line := range strings.Split(mountinfo, "\n") {
		left, right, ok := strings.Cut(line, " - ")
		if !ok {
			continue
		}
		where, what := strings.Fields(left), strings.Fields(right)
		if len(where) < 5 || len(what) < 3 {
			continue
		}
		switch what[0] {
		case "cgroup":
			for _, option := range strings.Split(what[2], ",") {
				for _, c := range controllers {
					if option == c {
						h.V1[c] = where[4]
					}
				}
			}
		case "cgroup2":
			h.V2 = where[4]
			offered, err := os.ReadFile(filepath.Join(where[4], "cgroup.controllers"))
			if err != nil {
				continue
			}
			for _, c := range strings.Fields(string(offered)) {
				h.V2Offered[c] = true
			}
		}
	}
	return h
}

// Hierarchy detects this machine's.
func Hierarchy() (Hierarchies, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Hierarchies{}, fmt.Errorf("read mounts: %w", err)
	}
	return DetectHierarchies(string(mounts)), nil
}

// roots are the distinct mount points in use.
func (h Hierarchies) roots() []string {
	seen := map[string]bool{}
	for _, dir := range h.V1 {
		seen[dir] = true
	}
	if h.V2 != "" {
		seen[h.V2] = true
	}
	var roots []string
	for dir := range seen {
		roots = append(roots, dir)
	}
	sort.Strings(roots)
	return roots
}

// Create makes the control group in every hierarchy, sets its limits and returns the directories to join. Limits for
// which no controller exists are returned as text: the process runs without them, and its owner must hear of it.
func (h Hierarchies) Create(group string, limits Limits) (dirs []string, unenforced []string, err error) {
	for _, root := range h.roots() {
		dir := filepath.Join(root, group)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, nil, fmt.Errorf("make control group: %w", err)
		}
		dirs = append(dirs, dir)
	}
	if h.V2 != "" {
		h.delegate(group)
	}
	for _, limit := range []struct {
		controller string
		value      int64
		v1, v2     map[string]string
	}{
		{"cpu", limits.MilliCPU,
			map[string]string{"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": strconv.FormatInt(limits.MilliCPU*100, 10)},
			map[string]string{"cpu.max": strconv.FormatInt(limits.MilliCPU*100, 10) + " 100000"}},
		{"memory", limits.Memory,
			map[string]string{"memory.limit_in_bytes": strconv.FormatInt(limits.Memory, 10)},
			map[string]string{"memory.max": strconv.FormatInt(limits.Memory, 10)}},
		{"pids", limits.PIDs,
			map[string]string{"pids.max": strconv.FormatInt(limits.PIDs, 10)},
			map[string]string{"pids.max": strconv.FormatInt(limits.PIDs, 10)}},
	} {
		if limit.value <= 0 {
			continue
		}
		root, files := h.V1[limit.controller], limit.v1
		if root == "" && h.V2Offered[limit.controller] {
			root, files = h.V2, limit.v2
		}
		if root == "" {
			unenforced = append(unenforced, limit.controller)
			continue
		}
		for name, value := range files {
			if err := os.WriteFile(filepath.Join(root, group, name), []byte(value), 0); err != nil {
				return nil, nil, fmt.Errorf("set limit %s: %w", name, err)
			}
		}
	}
	return dirs, unenforced, nil
}

// delegate hands version 2 controllers down to the group's parents. A controller that cannot be handed down (in use by
// version 1, or the parent has processes of its own) is simply not offered below; Create then reports the limit.
func (h Hierarchies) delegate(group string) {
	dir := h.V2
	for _, part := range strings.Split(filepath.Dir(group), "/") {
		for _, c := range controllers {
			if h.V2Offered[c] {
				_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
			}
		}
		dir = filepath.Join(dir, part)
	}
	for _, c := range controllers {
		if h.V2Offered[c] {
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
		}
	}
}

// removeTimeout is how long Remove waits for killed processes to leave their groups.
const removeTimeout = 10 * time.Second

// Remove kills every process in the group and in those below it, and removes them from all hierarchies. A group that
// does not exist is no error.
func (h Hierarchies) Remove(group string) error {
	deadline := time.Now().Add(removeTimeout)
	var last error
	for {
		last = nil
		for _, root := range h.roots() {
			last = errors.Join(last, removeTree(filepath.Join(root, group)))
		}
		if last == nil || time.Now().After(deadline) {
			return last
		}
		// Nothing tells when a killed process has left its group in version 1.
		<-time.After(20 * time.Millisecond)
	}
}

func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			return err
		}
		if d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("walk control group: %w", err)
	}
	var first error
	for i := len(dirs) - 1; i >= 0; i-- {
		for _, pid := range Members(dirs[i]) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err := syscall.Rmdir(dirs[i]); err != nil && !errors.Is(err, syscall.ENOENT) && first == nil {
			first = fmt.Errorf("remove control group %s: %w", dirs[i], err)
		}
	}
	return first
}

// Members lists the processes of one control group directory.
func Members(dir string) []int {
	content, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for _, field := range strings.Fields(string(content)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Populated says whether a group has any process.
func (h Hierarchies) Populated(group string) bool {
	for _, root := range h.roots() {
		if len(Members(filepath.Join(root, group))) > 0 {
			return true
		}
	}
	return false
}

// User is the first user id among those that a group's processes run with which is one of these; 0 when none is.
func (h Hierarchies) User(group string, is func(int) bool) int {
	for _, root := range h.roots() {
		for _, pid := range Members(filepath.Join(root, group)) {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil {
				continue // It has ended.
			}
			_, after, _ := strings.Cut(string(status), "\nUid:")
			line, _, _ := strings.Cut(after, "\n")
			for _, field := range strings.Fields(line) {
				if id, err := strconv.Atoi(field); err == nil && is(id) {
					return id
				}
			}
		}
	}
	return 0
}

// KillMembers kills every process of a group, in whichever hierarchy it is found.
func (h Hierarchies) KillMembers(group string) {
	for _, root := range h.roots() {
		for _, pid := range Members(filepath.Join(root, group)) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
