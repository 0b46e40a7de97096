// Package faults refuses file operations of a test's own code, or of a process that it started, as a disk does that fails
// or is full. The kernel asks for each call (seccomp_unotify(2)), so that what is tested is the code as it is, whichever
// library calls. A refused call is not made: nothing of it reaches the disk.
package faults

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Operation is what a call asks of the disk.
type Operation string

// The operations that can be refused.
const (
	// Sync is fsync(2) and fdatasync(2), of files and directories.
	Sync Operation = "sync"
	// Rename gives a file another name.
	Rename Operation = "rename"
	// Write is content that needs room: write(2) and its relatives, fallocate(2), ftruncate(2).
	Write Operation = "write"
)

// calls are the system calls of each operation, and which argument is the file's descriptor or, with a rename, the new name.
var calls = map[string]struct {
	operation Operation
	file      int
}{
	"fsync": {Sync, 0}, "fdatasync": {Sync, 0},
	"rename": {Rename, 1}, "renameat": {Rename, 3}, "renameat2": {Rename, 3},
	"write": {Write, 0}, "writev": {Write, 0}, "pwrite64": {Write, 0}, "fallocate": {Write, 0}, "ftruncate": {Write, 0},
}

// Call is one call that may be refused: the file's path, with a rename the new one, and what is to be done to it.
type Call struct {
	Operation Operation
	Path      string
}

// Rule says what a call gets: 0 lets it through. It is asked by one goroutine.
type Rule func(Call) unix.Errno

// Nth refuses the n-th call of an operation below a directory, counted from 1, and with lasting all that follow.
func Nth(operation Operation, dir string, n int, lasting bool, gives unix.Errno) Rule {
	seen := 0
	return func(c Call) unix.Errno {
		if c.Operation != operation || !strings.HasPrefix(c.Path, dir+string(filepath.Separator)) && c.Path != dir {
			return 0
		}
		seen++
		if seen == n || lasting && seen > n {
			return gives
		}
		return 0
	}
}

// Do runs a function with a rule for what it does itself: not for the goroutines that it starts, and not for [Write], on
// which the Go runtime may wait with everything else stopped.
func Do(rule Rule, f func()) error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer unix.Close(ends[0])
	installed, failed := make(chan int), make(chan error)
	go func() {
		defer unix.Close(ends[1])
		// Never unlocked: the thread ends with the function, and its filter with it.
		runtime.LockOSThread()
		listener, err := install(0, Sync, Rename)
		if err != nil {
			failed <- err
			return
		}
		installed <- listener
		f()
	}()
	select {
	case err := <-failed:
		return err
	case listener := <-installed:
		return (&Disk{rule: rule}).serve(listener, ends[0])
	}
}

// Enter gives the operations of this process to the test at the other end of a socket, which has to call [Supervise].
func Enter(socket int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	listener, err := install(unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH, Sync, Rename, Write)
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(socket, []byte{0}, unix.UnixRights(listener), nil, 0); err != nil {
		return fmt.Errorf("hand over the listener: %w", err)
	}
	return errors.Join(unix.Close(listener), unix.Close(socket))
}

// Disk decides what a process's calls get.
type Disk struct {
	mu      sync.Mutex
	rule    Rule
	refused int
	ended   chan error
}

// Supervise takes a process's operations from the other end of the socket that it called [Enter] with; without a rule they
// all pass.
func Supervise(socket int, rule Rule) (*Disk, error) {
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("take the listener: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("the process sent no listener: %d messages, %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	d := &Disk{rule: rule, ended: make(chan error, 1)}
	go func() { d.ended <- d.serve(fds[0], -1) }()
	return d, nil
}

// Set replaces the rule; with nil, all calls pass.
func (d *Disk) Set(rule Rule) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rule = rule
}

// Refused is how many calls were refused until now.
func (d *Disk) Refused() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused
}

// Wait returns when the process has ended.
func (d *Disk) Wait() error { return <-d.ended }

// decide asks the rule.
func (d *Disk) decide(c Call) unix.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rule == nil {
		return 0
	}
	gives := d.rule(c)
	if gives != 0 {
		d.refused++
	}
	return gives
}

// notification and response are the kernel's seccomp_notif and seccomp_notif_resp.
type notification struct {
	id          uint64
	thread      uint32
	flags       uint32
	number      int32
	arch        uint32
	instruction uint64
	args        [6]uint64
}

type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// serve answers calls until all threads with the filter have ended, or the other end of the pipe until is closed; -1 is none.
func (d *Disk) serve(listener, until int) error {
	defer unix.Close(listener)
	machine, err := arch.GetInfo("")
	if err != nil {
		return err
	}
	for {
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}, {Fd: int32(until)}}
		if _, err := unix.Poll(ready, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return fmt.Errorf("wait for calls: %w", err)
		}
		if ready[0].Revents&unix.POLLIN == 0 {
			return nil
		}
		var n notification
		if err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINTR) {
			continue // The thread ended, or took a signal, before its call was looked at.
		} else if err != nil {
			return fmt.Errorf("take a call: %w", err)
		}
		call := calls[machine.SyscallNumbers[int(n.number)]]
		answer := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		// A path that cannot be read is of a thread that has ended.
		if path, err := n.path(call.operation, call.file); err == nil {
			if gives := d.decide(Call{call.operation, path}); gives != 0 {
				answer = response{id: n.id, errno: -int32(gives)}
			}
		}
		if err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("answer a call: %w", err)
		}
	}
}

// path is what a call is about.
func (n *notification) path(operation Operation, argument int) (string, error) {
	if operation != Rename {
		return os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.thread, int32(n.args[argument])))
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", n.thread))
	if err != nil {
		return "", err
	}
	defer memory.Close()
	text := make([]byte, unix.PathMax)
	// A path may end shortly before the memory does.
	read, err := memory.ReadAt(text, int64(n.args[argument]))
	end := bytes.IndexByte(text[:read], 0)
	if end < 0 {
		return "", fmt.Errorf("read a path: %w", err)
	}
	return string(text[:end]), nil
}

func ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// install has the kernel ask for calls of some operations, of this thread unless the flags say otherwise.
func install(flags uintptr, operations ...Operation) (int, error) {
	machine, err := arch.GetInfo("")
	if err != nil {
		return -1, err
	}
	asked := seccomp.SyscallGroup{Action: seccomp.ActionUserNotify}
	for name, call := range calls {
		if _, known := machine.SyscallNames[name]; known && slices.Contains(operations, call.operation) {
			asked.Names = append(asked.Names, name)
		}
	}
	policy := seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{asked}}
	instructions, err := policy.Assemble()
	if err != nil {
		return -1, fmt.Errorf("assemble the filter: %w", err)
	}
	raw, err := bpf.Assemble(instructions)
	if err != nil {
		return -1, fmt.Errorf("assemble the filter: %w", err)
	}
	filters := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filters[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	program := unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, fmt.Errorf("set no_new_privs: %w", err)
	}
	flags |= unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return -1, fmt.Errorf("load the filter (needs Linux 5.19 and no listener of another): %w", errno)
	}
	return int(listener), nil
}
