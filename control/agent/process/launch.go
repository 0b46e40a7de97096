// Package process starts, finds again and stops the processes of workloads: each in its network namespace, with its own
// view of /etc/resolv.conf, in its control group, as its user, with its output in a file. Processes are independent of
// the agent: they survive its death, and a new agent finds them again by process id and start time.
package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/sandbox"
)

// Spec says how to start a process.
type Spec struct {
	// Command is the program (absolute) and its arguments.
	Command []string `json:"command"`
	// Env is the whole environment, NAME=value.
	Env []string `json:"env,omitempty"`
	// UID and GID to run as; supplementary groups are dropped.
	UID int `json:"uid"`
	GID int `json:"gid"`
	// Netns is the file of the network namespace; empty stays in the agent's.
	Netns string `json:"netns,omitempty"`
	// Hostname of the process, in a namespace of its own for such names; empty leaves the machine's.
	Hostname string `json:"hostname,omitempty"`
	// Resolv replaces /etc/resolv.conf in the process's mount namespace; empty leaves it.
	Resolv string `json:"resolv,omitempty"`
	// Hide lists directories that look empty to the process.
	Hide []string `json:"hide,omitempty"`
	// Sandbox confines the process; nil runs it with what its user may do on this machine.
	Sandbox *Sandbox `json:"sandbox,omitempty"`
	// Cgroups lists the control group directories to join.
	Cgroups []string `json:"cgroups,omitempty"`
	// Dir is the working directory; "/" when empty.
	Dir string `json:"dir,omitempty"`
	// Files is the limit of open files; zero leaves it.
	Files uint64 `json:"files,omitempty"`
	// Label says what it is a process of, for an agent that finds it without a record.
	Label string `json:"label,omitempty"`
	// Gated says that the launcher waits, before it becomes the program, until its starter has noted it.
	Gated bool `json:"gated,omitempty"`
}

// Sandbox is what differs between sandboxes; package sandbox says what they have in common.
type Sandbox struct {
	// Keep lists directories that the process sees, read-only, although they are below a hidden one.
	Keep []string `json:"keep,omitempty"`
	// Capabilities that the process has, without CAP_.
	Capabilities []string `json:"capabilities,omitempty"`
	// PIDs bounds the processes of the user, where no control group does; zero leaves it. Root has no such bound.
	PIDs uint64 `json:"pids,omitempty"`
}

// errorDescriptor is where the launcher reports why it could not start the program. It closes by itself when the
// program starts.
const errorDescriptor = 3

// gateDescriptor is where a gated launcher is told to go on. When its starter dies before, it ends.
const gateDescriptor = 4

// beganDescriptor is where a gated launcher notes that it becomes the program. The starter opens it: a file that is open for
// writing in the launcher's own mount namespace would keep that from being made read-only.
const beganDescriptor = 5

// errStarterGone: nobody hears it, and nothing has been started.
var errStarterGone = errors.New("the process that started the launcher is gone")

// Launch turns the calling process into the one that the file describes. It returns only when it failed, having said
// why to the process that started it.
func Launch(file string) error {
	err := launch(file)
	report := os.NewFile(errorDescriptor, "report")
	if report != nil {
		_, _ = fmt.Fprint(report, err)
	}
	return err
}

// Launcher is the name of the launcher's program.
const Launcher = "heddle-launch"

// InitArgument has the launcher's program be the first process of a sandbox.
const InitArgument = "init"

// Init is the first process of a sandbox that [Launch] became; the result is its exit code.
func Init(command []string) int {
	report := os.NewFile(errorDescriptor, "report")
	unix.CloseOnExec(errorDescriptor)
	return sandbox.Init(command, os.Environ(), func(err error) {
		if err != nil {
			_, _ = fmt.Fprint(report, startError(command[0], err))
		}
		report.Close()
	})
}

func startError(program string, err error) error {
	return fmt.Errorf("start %s: %w", program, err)
}

func launch(file string) error {
	unix.CloseOnExec(errorDescriptor)
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read launch file: %w", err)
	}
	var spec Spec
	if err := json.Unmarshal(content, &spec); err != nil {
		return fmt.Errorf("launch file %s: %w", file, err)
	}
	if len(spec.Command) == 0 {
		return fmt.Errorf("launch file %s names no command", file)
	}
	var began *os.File
	var self Record
	if spec.Gated {
		unix.CloseOnExec(gateDescriptor)
		unix.CloseOnExec(beganDescriptor)
		began = os.NewFile(beganDescriptor, "began")
		// By the number that the starter knows: in a sandbox, this process has another one.
		if self, err = myself(); err != nil {
			return fmt.Errorf("look at own process: %w", err)
		}
	}
	// Namespaces, groups and the final exec are per thread until exec makes this thread the process.
	runtime.LockOSThread()
	if err := enter(spec); err != nil {
		return err
	}
	if spec.Sandbox != nil {
		err = confine(spec)
	} else {
		err = become(spec)
	}
	if err != nil {
		return err
	}
	if spec.Gated {
		if err := passGate(began, self); err != nil {
			return err
		}
	}
	if spec.Sandbox != nil {
		// The report goes on to the sandbox's first process, which starts the program.
		if _, err := unix.FcntlInt(errorDescriptor, unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("hand down the report: %w", err)
		}
		if err := sandbox.Filter(spec.Sandbox.Capabilities); err != nil {
			return err
		}
		err = unix.Exec("/proc/self/exe", append(initCommand(), spec.Command...), spec.Env)
	} else {
		err = unix.Exec(spec.Command[0], spec.Command, spec.Env)
	}
	return startError(spec.Command[0], err)
}

// initCommand is how this program becomes the first process of a sandbox.
func initCommand() []string { return []string{filepath.Base(os.Args[0]), InitArgument} }

// enter joins what has a name: control groups and the network namespace.
func enter(spec Spec) error {
	for _, dir := range spec.Cgroups {
		// 0 is the writer, whatever number it has where.
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("join control group: %w", err)
		}
	}
	if spec.Netns != "" {
		target, err := netns.GetFromPath(spec.Netns)
		if err != nil {
			return fmt.Errorf("open network namespace %s: %w", spec.Netns, err)
		}
		if err := netns.Set(target); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", spec.Netns, err)
		}
		target.Close()
	}
	if spec.Files > 0 {
		return limitFiles(spec.Files)
	}
	return nil
}

// confine makes the sandbox around the calling thread, but for the filter of system calls.
func confine(spec Spec) error {
	// A namespace of control groups shows the groups that it is made in as the roots.
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make namespace of control groups: %w", err)
	}
	if spec.Hostname != "" {
		if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
			return fmt.Errorf("set host name %s: %w", spec.Hostname, err)
		}
	}
	if err := sandbox.Furnish(sandbox.Config{Program: spec.Command[0], Hide: spec.Hide, Keep: spec.Sandbox.Keep, Resolv: spec.Resolv}); err != nil {
		return err
	}
	if n := spec.Sandbox.PIDs; n > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("set limit of processes to %d: %w", n, err)
		}
	}
	if err := os.Chdir(spec.directory()); err != nil {
		return fmt.Errorf("enter working directory: %w", err)
	}
	return sandbox.Become(spec.UID, spec.GID, spec.Sandbox.Capabilities)
}

// become changes the calling thread to what the process is to be without a sandbox.
func become(spec Spec) error {
	if spec.Hostname != "" {
		if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("make namespace of host names: %w", err)
		}
		if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
			return fmt.Errorf("set host name %s: %w", spec.Hostname, err)
		}
	}
	if spec.Resolv != "" || len(spec.Hide) > 0 {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("make mount namespace: %w", err)
		}
		// Slave, not private: names of network namespaces that go away on the host must go away here too.
		if err := unix.Mount("", "/", "none", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("detach mounts: %w", err)
		}
		if spec.Resolv != "" {
			if err := unix.Mount(spec.Resolv, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("mount %s on /etc/resolv.conf: %w", spec.Resolv, err)
			}
		}
		for _, dir := range spec.Hide {
			if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err := unix.Mount("none", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY, "size=4k,mode=0755"); err != nil {
				return fmt.Errorf("hide %s: %w", dir, err)
			}
		}
	}
	if err := os.Chdir(spec.directory()); err != nil {
		return fmt.Errorf("enter working directory: %w", err)
	}
	if err := unix.Setgroups(nil); err != nil {
		return fmt.Errorf("drop groups: %w", err)
	}
	if err := unix.Setresgid(spec.GID, spec.GID, spec.GID); err != nil {
		return fmt.Errorf("become group %d: %w", spec.GID, err)
	}
	if err := unix.Setresuid(spec.UID, spec.UID, spec.UID); err != nil {
		return fmt.Errorf("become user %d: %w", spec.UID, err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	return nil
}

func (s Spec) directory() string {
	if s.Dir == "" {
		return "/"
	}
	return s.Dir
}

// passGate waits until the starter has noted the process, and notes itself that the program begins: from here on nothing
// but the program's own ending keeps it from running.
func passGate(began io.Writer, self Record) error {
	gate := os.NewFile(gateDescriptor, "gate")
	if _, err := io.ReadFull(gate, make([]byte, 1)); err != nil {
		return errStarterGone
	}
	if _, err := io.WriteString(began, self.key()); err != nil {
		return fmt.Errorf("note the start: %w", err)
	}
	return nil
}

// limitFiles sets the limit of open files. Where even root may not go beyond the hard limit, as in some containers, that
// one holds.
func limitFiles(files uint64) error {
	err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files})
	if errors.Is(err, unix.EPERM) {
		var now unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
			return fmt.Errorf("read limit of open files: %w", err)
		}
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(files, now.Max), Max: now.Max})
	}
	if err != nil {
		return fmt.Errorf("set limit of open files to %d: %w", files, err)
	}
	return nil
}

// Resolve finds a program: an absolute path as it is, a relative one first in the directories given, then in PATH.
func Resolve(program string, dirs ...string) (string, error) {
	if filepath.IsAbs(program) {
		return program, executable(program)
	}
	for _, dir := range dirs {
		if path := filepath.Join(dir, program); executable(path) == nil {
			return path, nil
		}
	}
	if !strings.Contains(program, "/") {
		if path, err := exec.LookPath(program); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("program %q is neither in %s nor in PATH; give its absolute path, or install it there", program, strings.Join(dirs, ", "))
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("program %s: %w", path, err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return fmt.Errorf("program %s is not an executable file", path)
	}
	return nil
}
