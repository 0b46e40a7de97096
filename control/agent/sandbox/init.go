package sandbox

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalled is what a shell adds to a signal's number, for the exit code of what was killed by it.
const signalled = 128

// Init is the first process of a sandbox, its namespace's process 1: it starts the program, passes signals on to it, and
// waits for processes that nobody else does. It has the program's user and nothing more.
//
// When the program could not be started, started is told why. The result is its exit code.
func Init(command, environment []string, started func(error)) int {
	// Little to do, and every thread counts against the limit of processes.
	runtime.GOMAXPROCS(1)
	signals := make(chan os.Signal, 64)
	signal.Notify(signals)
	// A session of its own, so that signals to the group of this process are the program's once, from here.
	program, err := syscall.ForkExec(command[0], command, &syscall.ProcAttr{Env: environment, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}})
	started(err)
	if err != nil {
		return signalled - 1
	}
	go func() {
		for s := range signals {
			switch s {
			case unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE:
				// This process's own.
			default:
				if number, ok := s.(syscall.Signal); ok {
					// The program may have ended meanwhile.
					_ = unix.Kill(-program, number)
				}
			}
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return signalled - 1
		case pid == program && status.Exited():
			return status.ExitStatus()
		case pid == program && status.Signaled():
			return signalled + int(status.Signal())
		}
	}
}

// KilledBy is the signal that the exit code of [Init] tells of, or 0. A program that ends with such a code itself cannot be
// told apart, as in a shell.
func KilledBy(code int) syscall.Signal {
	if s := syscall.Signal(code - signalled); code > signalled && unix.SignalName(s) != "" {
		return s
	}
	return 0
}
