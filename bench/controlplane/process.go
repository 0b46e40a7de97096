package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/controller"
	"heddle.io/heddle/control/server/client"
)

// clusterName is the measured cluster's.
const clusterName = "bench"

// place is where a cluster below a folder lives.
func place(dir string) (cluster.Cluster, error) {
	c, err := cluster.New(clusterName)
	c.DataRoot, c.RunRoot = filepath.Join(dir, "lib"), filepath.Join(dir, "run")
	return c, err
}

// Serve runs the controller in this process, until ctx ends.
func Serve(ctx context.Context, dir string) error {
	c, err := place(dir)
	if err != nil {
		return err
	}
	for _, d := range []string{c.Data(), c.Run()} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	if err := c.Keep(cluster.Options{Family: cluster.IPv4}); err != nil {
		return err
	}
	return controller.Run(ctx, controller.Config{Cluster: c, Version: "bench", Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Listen: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }})
}

// process is the controller's.
type process struct {
	cmd    *exec.Cmd
	log    bytes.Buffer
	ended  chan struct{}
	place  cluster.Cluster
	client *client.Client
}

// startTimeout bounds the controller's start.
const startTimeout = 30 * time.Second

// start runs this program again as the controller: what argv names must call [Serve].
func start(ctx context.Context, dir string, argv ...string) (*process, error) {
	c, err := place(dir)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(argv[0], append(argv[1:], dir)...), ended: make(chan struct{}), place: c, client: client.New(c.APISocket())}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the controller: %w", err)
	}
	go func() {
		// How it ended is in its state and its log.
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		_, err := p.client.Status(ctx)
		if err == nil {
			return p, nil
		}
		select {
		case <-look.C:
		case <-p.ended:
			return nil, fmt.Errorf("the controller ended: %s\n%s", p.cmd.ProcessState, &p.log)
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("the controller does not answer: %w", err), p.stop())
		}
	}
}

func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the controller: %w", err)
	}
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	return nil
}

// cpu is the processor time that a process has taken, 0 for this one (proc_pid_stat(5)).
func cpu(pid int) (time.Duration, error) {
	name := "self"
	if pid != 0 {
		name = strconv.Itoa(pid)
	}
	text, err := os.ReadFile("/proc/" + name + "/stat")
	if err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	// The second field, the program's name in brackets, may hold anything.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const user, system = 11, 12
	if len(fields) <= system {
		return 0, fmt.Errorf("read processor time: %q has too few fields", text)
	}
	var ticks int64
	for _, f := range fields[user : system+1] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read processor time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / ticksPerSecond), nil
}

// ticksPerSecond is USER_HZ, which Linux has the same on all of our architectures.
const ticksPerSecond = 100

// spent is the processor time of the controller and that of this process, which plays the proxies.
type spent struct{ controller, proxies time.Duration }

func (p *process) spent() (s spent, err error) {
	if s.controller, err = cpu(p.cmd.Process.Pid); err != nil {
		return s, fmt.Errorf("the controller: %w\n%s", err, &p.log)
	}
	s.proxies, err = cpu(0)
	return s, err
}

func (s spent) since(before spent, n int) spent {
	return spent{(s.controller - before.controller) / time.Duration(n), (s.proxies - before.proxies) / time.Duration(n)}
}

func (s spent) String() string {
	return fmt.Sprintf("processor time: controller %s, proxies %s", s.controller.Round(100*time.Microsecond), s.proxies.Round(100*time.Microsecond))
}

// memory is the resident memory now and at its highest, in bytes (proc_pid_status(5)).
func (p *process) memory() (now, highest int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, fmt.Errorf("the controller has ended: %w\n%s", err, &p.log)
	}
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 2 {
			continue
		}
		into := &now
		switch string(fields[0]) {
		case "VmRSS:":
		case "VmHWM:":
			into = &highest
		default:
			continue
		}
		kilobytes, err := strconv.ParseInt(string(fields[1]), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", line, err)
		}
		*into = kilobytes << 10
	}
	return now, highest, nil
}
