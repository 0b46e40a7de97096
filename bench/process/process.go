// Package process starts the programs of a benchmark, each in its place, and reads what they cost.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// listenBound is how long a program may take to listen: one under valgrind, on a busy machine, takes more than ten seconds.
const listenBound = time.Minute

// clockTick is USER_HZ, which Linux fixes at 100 for every architecture Heddle runs on.
const clockTick = 100

// Process is a running program and its children.
type Process struct {
	name string
	at   Place
	cmd  *exec.Cmd
	log  *bytes.Buffer
	done chan struct{}
	// ended is how it did, once done is closed.
	ended error
}

// Start runs argv. name is used in messages. The program must stay in the foreground.
func Start(name string, at Place, argv ...string) (*Process, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, fmt.Errorf("start %s: %w; install it or leave it out with -subjects", name, err)
	}
	p := &Process{name: name, at: at, log: new(bytes.Buffer), done: make(chan struct{})}
	p.cmd = at.Command(append([]string{path}, argv[1:]...)...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr.Setpgid = true
	if err := at.Launch(p.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		// Stop always ends it by a signal.
		p.ended = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID is the program's process, and the group of it and its children.
func (p *Process) PID() int {
	return p.cmd.Process.Pid
}

// WaitReady waits until address accepts connections from the program's place, for at most a minute.
func (p *Process) WaitReady(address string) error {
	deadline := time.Now().Add(listenBound)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn, err := p.at.dial(ctx, address)
		cancel()
		if err == nil {
			return conn.Close()
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it listened on %s:\n%s", p.name, address, p.log)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not listen on %s after %v: %w", p.name, address, listenBound, err)
		}
	}
}

// WaitEnd waits until the program has ended by itself, and well, for at most that long.
func (p *Process) WaitEnd(bound time.Duration) error {
	select {
	case <-p.done:
		if p.ended != nil {
			return fmt.Errorf("%s: %w\n%s", p.name, p.ended, p.log)
		}
		return nil
	case <-time.After(bound):
		return fmt.Errorf("%s still runs after %v:\n%s", p.name, bound, p.log)
	}
}

// Stop ends the program and its children and waits for it.
func (p *Process) Stop() {
	_ = syscall.Kill(-p.PID(), syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(3 * time.Second):
		_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
		<-p.done
	}
}

// Cost is what a process and its children have used so far.
type Cost struct {
	// User and System are the processor times in the program and in the kernel on its behalf.
	User, System time.Duration
	// RSS is the resident memory now, in bytes.
	RSS int64
	// Switches are how often a processor was given to something else, since there was nothing to do or by the scheduler's will.
	Switches int64
}

// Cost reads /proc for every process of the program's group.
func (p *Process) Cost() (Cost, error) {
	var total Cost
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return total, err
	}
	found := false
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // It ended between the listing and the reading.
		}
		fields, err := statFields(data)
		if err != nil {
			return total, fmt.Errorf("%s: %w", path, err)
		}
		if group, _ := strconv.Atoi(fields[2]); group != p.PID() {
			continue
		}
		found = true
		for i, into := range []*time.Duration{&total.User, &total.System} {
			ticks, err := strconv.ParseInt(fields[11+i], 10, 64)
			if err != nil {
				return total, fmt.Errorf("%s: %w", path, err)
			}
			*into += time.Duration(ticks) * time.Second / clockTick
		}
		pages, err := strconv.ParseInt(fields[21], 10, 64)
		if err != nil {
			return total, fmt.Errorf("%s: %w", path, err)
		}
		total.RSS += pages * int64(os.Getpagesize())
		switches, err := contextSwitches(filepath.Dir(path))
		if err != nil {
			return total, err
		}
		total.Switches += switches
	}
	if !found {
		return total, fmt.Errorf("%s has ended:\n%s", p.name, p.log)
	}
	return total, nil
}

// contextSwitches of all threads of a process, of which that is the directory in /proc. Ended threads are not in it.
func contextSwitches(dir string) (int64, error) {
	tasks, err := filepath.Glob(filepath.Join(dir, "task", "[0-9]*", "status"))
	if err != nil {
		return 0, err
	}
	var total int64
	for _, path := range tasks {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // It ended between the listing and the reading.
		}
		for line := range strings.Lines(string(data)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if name != "voluntary_ctxt_switches" && name != "nonvoluntary_ctxt_switches" {
				continue
			}
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", path, err)
			}
			total += n
		}
	}
	return total, nil
}

// statFields splits /proc/PID/stat after the command's name, which may hold spaces; index 0 is the state.
func statFields(data []byte) ([]string, error) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return nil, errors.New("no command name")
	}
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) < 22 {
		return nil, fmt.Errorf("%d fields, want at least 22", len(fields))
	}
	return fields, nil
}
