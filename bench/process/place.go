package process

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"

	"heddle.io/heddle/control/agent/network"
)

// Place is where a program runs.
type Place struct {
	// CPU is the first processor that it uses, and CPUs how many from there on; zero means one.
	CPU, CPUs int
	// Netns is the name of its network namespace; empty is the benchmark's own.
	Netns string
	// Cgroup is its control group, a directory of version 2; empty is the benchmark's own. Whoever made the group ends what is left
	// in it.
	Cgroup string
	// Quota is what it gets of a processor, with all others that have the same; nil is all. It is of the benchmark's own user, and in no
	// other control group.
	Quota *Quota
	// User and group that it runs as; 0 is the benchmark's own.
	User uint32
}

// Command runs argv in this place. [Place.Launch] starts it.
func (p Place) Command(argv ...string) *exec.Cmd {
	if p.Quota != nil {
		argv = p.Quota.under(argv)
	}
	cmd := exec.Command("taskset", append([]string{"-c", fmt.Sprintf("%d-%d", p.CPU, p.CPU+max(p.CPUs, 1)-1)}, argv...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if p.Netns == "" {
		// Elsewhere, the program is started by a thread that may end before the benchmark does, which would count.
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if p.User != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: p.User, Gid: p.User}
	}
	return cmd
}

// Launch starts a command of [Place.Command].
func (p Place) Launch(cmd *exec.Cmd) error {
	if p.Cgroup != "" {
		group, err := os.Open(p.Cgroup)
		if err != nil {
			return err
		}
		defer group.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	}
	if p.Netns == "" {
		return cmd.Start()
	}
	return network.In(p.Netns, cmd.Start)
}

// dial connects from here to an IP address and port.
func (p Place) dial(ctx context.Context, address string) (net.Conn, error) {
	if p.Netns == "" {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "tcp", address)
	}
	return network.Dial(ctx, p.Netns, "tcp", address)
}
