package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Group are processes that somebody else started, such as an agent.
type Group []int

// Members are the processes that are in a control group now, a directory of version 2.
func Members(directory string) (Group, error) {
	content, err := os.ReadFile(filepath.Join(directory, "cgroup.procs"))
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var group Group
	for text := range strings.FieldsSeq(string(content)) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("list processes of %s: %w", directory, err)
		}
		group = append(group, pid)
	}
	if len(group) == 0 {
		return nil, fmt.Errorf("no process is in %s", directory)
	}
	return group, nil
}

// OnCPU is how long all of them have run so far. It is an error that one has ended.
func (g Group) OnCPU() (time.Duration, error) {
	var total time.Duration
	for _, pid := range g {
		ran, err := OnCPU(pid)
		if err != nil {
			return 0, err
		}
		total += ran
	}
	return total, nil
}

// Pin has all their threads use one processor, and those that they start from then on.
func (g Group) Pin(cpu int) error {
	for _, pid := range g {
		if err := pin(pid, cpu); err != nil {
			return fmt.Errorf("pin process %d to processor %d: %w", pid, cpu, err)
		}
	}
	return nil
}

func pin(pid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	pinned := map[string]bool{}
	for {
		threads, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
		if err != nil {
			return err
		}
		before := len(pinned)
		for _, thread := range threads {
			if pinned[thread.Name()] {
				continue
			}
			pinned[thread.Name()] = true
			number, err := strconv.Atoi(thread.Name())
			if err != nil {
				return err
			}
			// It may have ended since.
			if err := unix.SchedSetaffinity(number, &set); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		// One that was started meanwhile has the set of whoever started it, which may be the old one.
		if len(pinned) == before {
			return nil
		}
	}
}
