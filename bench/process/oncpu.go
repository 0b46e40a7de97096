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

// processClock marks an id as the clock of a process' whole running time: CPUCLOCK_SCHED of Linux (clock_getcpuclockid(3)).
const processClock = 2

// OnCPU is how long all threads of a process have run so far, ended ones too, in nanoseconds as the scheduler counts them: for times
// in which the ticks of [Process.Cost] are too coarse. Its children are not in it.
func OnCPU(pid int) (time.Duration, error) {
	var ran unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|processClock), &ran); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(ran.Nano()), nil
}

// OnCPUByThread is how long each of a process' threads has run so far, by its number, as [OnCPU].
func OnCPUByThread(pid int) (map[int]time.Duration, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "task")
	threads, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	ran := map[int]time.Duration{}
	for _, thread := range threads {
		content, err := os.ReadFile(filepath.Join(dir, thread.Name(), "schedstat"))
		if errors.Is(err, os.ErrNotExist) {
			continue // It has ended just now.
		}
		if err != nil {
			return nil, err
		}
		number, err := strconv.Atoi(thread.Name())
		if err != nil {
			return nil, err
		}
		first, _, _ := strings.Cut(string(content), " ")
		nanoseconds, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("processor time of thread %d: %w", number, err)
		}
		ran[number] = time.Duration(nanoseconds)
	}
	return ran, nil
}
