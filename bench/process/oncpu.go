package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Group is the process group of the program and its children.
func (p *Process) Group() int {
	return p.cmd.Process.Pid
}

// OnCPU is how long the threads of a process group have run so far, in nanoseconds as the scheduler counts them: for times in which
// the ticks of [Process.Cost] are too coarse. Threads that have ended are not in it.
func OnCPU(group int) (time.Duration, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	var total time.Duration
	found := false
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // It ended between the listing and the reading.
		}
		fields, err := statFields(data)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		if of, _ := strconv.Atoi(fields[2]); of != group {
			continue
		}
		threads, err := filepath.Glob(filepath.Join(filepath.Dir(path), "task/[0-9]*/schedstat"))
		if err != nil {
			return 0, err
		}
		for _, thread := range threads {
			data, err := os.ReadFile(thread)
			if err != nil {
				continue
			}
			ran, _, _ := strings.Cut(string(data), " ")
			ns, err := strconv.ParseInt(ran, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", thread, err)
			}
			total += time.Duration(ns)
			found = true
		}
	}
	if !found {
		return 0, fmt.Errorf("no thread of process group %d has a schedstat", group)
	}
	return total, nil
}
