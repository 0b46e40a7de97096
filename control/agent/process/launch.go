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
	"strconv"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
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

// errorDescriptor is where the launcher reports why it could not start the program. It closes by itself when the
// program starts.
const errorDescriptor = 3

// gateDescriptor is where a gated launcher is told to go on. When its starter dies before, it ends.
const gateDescriptor = 4

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
	if spec.Gated {
		unix.CloseOnExec(gateDescriptor)
		// Opened now: later, the directory is hidden. It closes by itself when the program starts.
		began, err = os.OpenFile(beganPath(file), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return fmt.Errorf("open note of the start: %w", err)
		}
	}
	// Namespaces, groups and the final exec are per thread until exec makes this thread the process.
	runtime.LockOSThread()
	for _, dir := range spec.Cgroups {
		path := filepath.Join(dir, "cgroup.procs")
		if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
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
	if spec.Files > 0 {
		if err := limitFiles(spec.Files); err != nil {
			return err
		}
	}
	dir := spec.Dir
	if dir == "" {
		dir = "/"
	}
	if err := os.Chdir(dir); err != nil {
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
	if spec.Gated {
		if err := passGate(began); err != nil {
			return err
		}
	}
	if err := unix.Exec(spec.Command[0], spec.Command, spec.Env); err != nil {
		return fmt.Errorf("start %s: %w", spec.Command[0], err)
	}
	return nil
}

// passGate waits until the starter has noted the process, and notes itself that the program begins: from here on nothing
// but the program's own ending keeps it from running.
func passGate(began io.Writer) error {
	gate := os.NewFile(gateDescriptor, "gate")
	if _, err := io.ReadFull(gate, make([]byte, 1)); err != nil {
		return errStarterGone
	}
	self, err := inspect(os.Getpid())
	if err != nil {
		return fmt.Errorf("look at own process: %w", err)
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
