//go:build e2e

package harness

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// StartedBy is a process that another one started: the first process of a sandbox is not the program that runs in it.
func StartedBy(pid int) (int, error) {
	out, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	children := strings.Fields(string(out))
	if err != nil || len(children) == 0 {
		// The first process's thread that started it may be another one.
		out, err = exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output()
		children = strings.Fields(string(out))
	}
	if err != nil || len(children) == 0 {
		return 0, fmt.Errorf("process %d started nothing: %v", pid, err) //nolint:errorlint // It may be none.
	}
	return strconv.Atoi(children[0])
}

// ProxyProgram is the file of the program that is the replica's proxy.
func (r Replica) ProxyProgram() (string, error) {
	proxy, err := StartedBy(r.State.ProxyPID)
	if err != nil {
		return "", err
	}
	return os.Readlink(fmt.Sprintf("/proc/%d/exe", proxy))
}
