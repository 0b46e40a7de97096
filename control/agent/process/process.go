package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/sandbox"
	"heddle.io/heddle/control/durable"
)

// Record is what identifies a running process after its starter has gone.
type Record struct {
	PID int `json:"pid"`
	// Ticks is the start time since boot in clock ticks (field 22 of /proc/<pid>/stat): with it a reused process id
	// is told apart.
	Ticks uint64 `json:"ticks"`
	// Boot is the kernel's boot id.
	Boot string `json:"boot"`
	// Started by the wall clock, for people.
	Started time.Time `json:"started"`
}

// Process is a running or ended process.
type Process struct {
	Record Record
	done   chan struct{}
	// confined says that its exit code is that of a sandbox's first process, which cannot be killed by a signal from inside.
	confined bool
	// reason is set before done closes.
	reason string
	failed bool
}

// startTimeout bounds how long a launcher may take until its program runs.
const startTimeout = 30 * time.Second

// reached is called at the points of a start at which tests kill the starter.
var reached = func(point string) {}

// Start launches a process. The specification is written to file (mode 0600, for it may hold secrets in the
// environment); log is opened for appending and receives standard output and error. An error means that no process is
// left behind, and says why.
//
// With note, the program runs only once note has kept its record: a starter that dies before leaves nothing running, and
// one that dies after is found again by [Find].
func Start(spec Spec, file, log string, launcher []string, note func(Record) error) (*Process, error) {
	spec.Gated = note != nil
	content, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode launch file: %w", err)
	}
	if err := durable.Write(file, content, 0o600); err != nil {
		return nil, fmt.Errorf("write launch file: %w", err)
	}
	reached("described")
	output, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer output.Close()
	reports, report, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	defer reports.Close()
	waiting, gate, err := os.Pipe()
	if err != nil {
		report.Close()
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	defer gate.Close()
	cmd := exec.Command(launcher[0], append(launcher[1:], file)...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.ExtraFiles = []*os.File{report, waiting}
	if spec.Gated {
		began, err := os.OpenFile(beganPath(file), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			report.Close()
			waiting.Close()
			return nil, fmt.Errorf("open note of the start: %w", err)
		}
		defer began.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, began)
	}
	cmd.Dir = "/"
	// A session of its own: signals to the agent's terminal do not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if spec.Sandbox != nil {
		cmd.SysProcAttr.Cloneflags = sandbox.Namespaces
	}
	err = cmd.Start()
	report.Close()
	waiting.Close()
	if err != nil {
		return nil, fmt.Errorf("start launcher: %w", err)
	}
	reached("launched")
	// The launcher keeps id and start time when it becomes the program. It cannot be gone entirely before it is waited for.
	record, inspectErr := inspect(cmd.Process.Pid)
	record.PID, record.Started = cmd.Process.Pid, time.Now()
	p := &Process{Record: record, done: make(chan struct{}), confined: spec.Sandbox != nil}
	go func() {
		p.ended(cmd.Wait(), cmd.ProcessState)
	}()
	if note != nil && inspectErr == nil {
		if err := note(record); err != nil {
			_ = cmd.Process.Kill()
			<-p.done
			return nil, fmt.Errorf("note the process before it starts: %w", err)
		}
		reached("noted")
		// A launcher that has failed meanwhile says so below.
		_, _ = gate.Write([]byte{1})
		reached("released")
	}
	if err := reports.SetReadDeadline(time.Now().Add(startTimeout)); err != nil {
		// Pipes always support deadlines; without one a launcher that hangs would block.
		return nil, errors.Join(fmt.Errorf("bound launch: %w", err), cmd.Process.Kill())
	}
	message, err := io.ReadAll(io.LimitReader(reports, 4096))
	if err != nil || len(message) > 0 {
		_ = cmd.Process.Kill()
		<-p.done
		if err != nil {
			return nil, fmt.Errorf("launcher did not start the program within %s", startTimeout)
		}
		return nil, errors.New(string(message))
	}
	reached("started")
	return p, nil
}

func (p *Process) ended(err error, state *os.ProcessState) {
	defer close(p.done)
	if state == nil {
		p.reason, p.failed = fmt.Sprint(err), true
		return
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	killer := syscall.Signal(0)
	switch {
	case ok && status.Signaled():
		killer = status.Signal()
	case p.confined:
		killer = sandbox.KilledBy(state.ExitCode())
	}
	if killer != 0 {
		p.reason, p.failed = "killed by signal "+unix.SignalName(killer), true
		return
	}
	p.reason, p.failed = "exit code "+strconv.Itoa(state.ExitCode()), state.ExitCode() != 0
}

// Adopt finds a process again. It returns nil when it is gone or another one has its id.
func Adopt(record Record) *Process {
	if !record.Alive() {
		return nil
	}
	fd, err := unix.PidfdOpen(record.PID, 0)
	if err != nil {
		return nil
	}
	// Opened after the first look, so that the descriptor is of the process that was looked at.
	if !record.Alive() {
		unix.Close(fd)
		return nil
	}
	p := &Process{Record: record, done: make(chan struct{})}
	go func() {
		defer unix.Close(fd)
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
				// The exit code is known to the real parent only.
				p.reason, p.failed = "ended (it was started by an earlier agent, its exit code is unknown)", true
				close(p.done)
				return
			}
		}
	}()
	return p
}

// Alive says whether the recorded process still runs.
func (r Record) Alive() bool {
	if r.PID <= 1 {
		return false
	}
	now, err := inspect(r.PID)
	return err == nil && now.Ticks == r.Ticks && now.Boot == r.Boot
}

// Self is the record of the calling process.
func Self() (Record, error) {
	r, err := myself()
	r.Started = time.Now()
	return r, err
}

// myself looks at the calling process as /proc knows it, which need not be by the number that it has itself.
func myself() (Record, error) {
	link, err := os.Readlink("/proc/self")
	if err != nil {
		return Record{}, err
	}
	pid, err := strconv.Atoi(link)
	if err != nil {
		return Record{}, err
	}
	return inspect(pid)
}

func inspect(pid int) (Record, error) {
	fields, err := stat(pid)
	if err != nil {
		return Record{}, err
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return Record{}, fmt.Errorf("process %d has ended", pid)
	}
	ticks, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return Record{}, fmt.Errorf("unexpected /proc/%d/stat: %w", pid, err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Record{}, fmt.Errorf("read boot id: %w", err)
	}
	return Record{PID: pid, Ticks: ticks, Boot: strings.TrimSpace(string(boot))}, nil
}

// Done closes when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit says how the process ended and whether that counts as a failure. It is valid after Done.
func (p *Process) Exit() (reason string, failed bool) { return p.reason, p.failed }

// Running says whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal to the process and the rest of its session's process group.
func (p *Process) Signal(signal syscall.Signal) {
	if p.Running() {
		// The group is gone already when the process ended meanwhile: nothing to do then.
		_ = syscall.Kill(-p.Record.PID, signal)
	}
}

// Stop ends the process: SIGTERM, and SIGKILL after the grace period.
func (p *Process) Stop(grace time.Duration) {
	p.Signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.Signal(syscall.SIGKILL)
		<-p.done
	}
}

// Kill ends a recorded process that nobody waits for, together with its process group.
func (r Record) Kill(grace time.Duration) {
	if p := Adopt(r); p != nil {
		p.Stop(grace)
	}
}

// WriteRecord keeps a record in a file that only root reads.
func WriteRecord(path string, value any) error { return durable.WriteJSON(path, value, 0o600) }

// ReadRecord reads what WriteRecord kept. A missing file gives os.ErrNotExist, a part of one durable.ErrTorn.
func ReadRecord(path string, value any) error { return durable.ReadJSON(path, value) }
