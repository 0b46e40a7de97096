package sandbox

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The first arguments by which this test's program is a machine with mounts of its own, and a process in a sandbox there.
const (
	asMachine  = "machine"
	asConfined = "confined"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case asMachine:
			exit(beMachine(os.Args[2]))
		case asConfined:
			exit(beConfined(os.Args[2]))
		}
	}
	os.Exit(m.Run())
}

func exit(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// machines are what becomes of a machine while a process in a sandbox runs.
var machines = map[string]func(*machine) error{"mounts later": mountsLater, "hidden mounts": hiddenMounts, "replaced files": replacedFiles}

// onMachine runs one of them. What it says is wrong is the test's failure.
func onMachine(t *testing.T, name string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a machine's mounts need root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, asMachine, name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s%v", out, err)
	}
}

// machine is one whose mounts spread, as systemd's do, but not to the machine that the tests run on. /etc, /run, /mnt and /var are its own.
type machine struct {
	confined *exec.Cmd
	asks     io.WriteCloser
	answers  *bufio.Scanner
	problems []error
}

func beMachine(name string) error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("part from the machine: %w", err)
	}
	for _, dir := range []string{"/mnt", "/run", "/etc", "/var"} {
		if err := unix.Mount("none", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("have mounts spread: %w", err)
	}
	m := &machine{}
	err := machines[name](m)
	if m.confined != nil {
		m.asks.Close()
		err = errors.Join(err, m.confined.Wait())
	}
	return errors.Join(append(m.problems, err)...)
}

// mount mounts a file system with a file that anybody may write to, and set-user-ID.
func (m *machine) mount(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "mode=0777"); err != nil {
		return err
	}
	return put(dir+"/file", dir)
}

// put makes a file, in the place of another as programs do that keep passwords.
func put(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+"+", []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(path+"+", path)
}

// confine starts a process in a sandbox.
func (m *machine) confine(c Config) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	config, err := json.Marshal(c)
	if err != nil {
		return err
	}
	m.confined = exec.Command(self, asConfined, string(config))
	m.confined.SysProcAttr = &syscall.SysProcAttr{Cloneflags: Namespaces, Pdeathsig: unix.SIGKILL}
	m.confined.Stderr = os.Stdout
	if m.asks, err = m.confined.StdinPipe(); err != nil {
		return err
	}
	out, err := m.confined.StdoutPipe()
	if err != nil {
		return err
	}
	m.answers = bufio.NewScanner(out)
	if err := m.confined.Start(); err != nil {
		return err
	}
	if ready := m.next(); ready != "ready" {
		return errors.New(ready)
	}
	return nil
}

func (m *machine) next() string {
	m.answers.Scan()
	return m.answers.Text()
}

// expect has the process do something with a file, as root with all capabilities, and says when it comes out otherwise.
func (m *machine) expect(do, path, want string) {
	if _, err := fmt.Fprintln(m.asks, do, path); err != nil {
		m.problems = append(m.problems, err)
		return
	}
	if got := m.next(); got != want {
		m.problems = append(m.problems, fmt.Errorf("%s %s: %s, want %s", do, path, got, want))
	}
}

// What a process in a sandbox can do with a path.
var deeds = map[string]func(path string) (string, error){
	"read": func(path string) (string, error) {
		content, err := os.ReadFile(path)
		return string(content), err
	},
	"list": func(path string) (string, error) {
		entries, err := os.ReadDir(path)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " "), err
	},
	"write": func(path string) (string, error) { return "written", os.WriteFile(path, nil, 0o600) },
	"chmod": func(path string) (string, error) { return "changed", os.Chmod(path, 0o777) },
	// mounts says whether anything is mounted there, seen or not.
	"mounts": func(path string) (string, error) {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		for line := range strings.Lines(string(mounts)) {
			if fields := strings.Fields(line); slices.Contains(fields[:5], path) {
				return "mounted", nil
			}
		}
		return "none", err
	},
}

func beConfined(config string) error {
	var c Config
	err := json.Unmarshal([]byte(config), &c)
	if err == nil {
		err = Furnish(c)
	}
	if err != nil {
		return err
	}
	fmt.Println("ready")
	asks := bufio.NewScanner(os.Stdin)
	for asks.Scan() {
		do, path, _ := strings.Cut(asks.Text(), " ")
		got, err := deeds[do](path)
		var errno syscall.Errno
		if errors.As(err, &errno) {
			got = unix.ErrnoName(errno)
		}
		fmt.Println(got)
	}
	return asks.Err()
}
