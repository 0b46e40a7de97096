package process

import (
	"fmt"
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
