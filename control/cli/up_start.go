package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/agent/bypass"
	"heddle.io/heddle/control/agent/lock"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/server/client"
)

// agentCommandLine starts the agent: in an isolated cluster, inside of its namespaces.
func (b *bringing) agentCommandLine() []string {
	run := []string{b.self, "agent", "run", "--name", b.cluster.Name, "--proxy", b.flags.proxy}
	if b.flags.foreign {
		run = append(run, "--foreign-proxy")
	}
	if !b.options.Isolated {
		return run
	}
	return append([]string{b.self, "agent", "enter", "--name", b.cluster.Name, "--"}, run...)
}

// start starts the agent, unless it runs, and waits until everything is ready.
func (b *bringing) start(ctx context.Context) error {
	p := newProgress(b.out)
	var ended <-chan struct{}
	if b.agent == 0 {
		p.begin("start the agent")
		done, err := b.startAgent()
		if err != nil {
			p.fail()
			return err
		}
		ended = done
		p.done()
	}
	p.begin("controller and gateways ready")
	if err := b.await(ctx, p, ended); err != nil {
		p.fail()
		return err
	}
	p.done()
	if b.member {
		b.awaitPrimary(ctx)
	}
	return nil
}

// await waits until everything is ready.
func (b *bringing) await(ctx context.Context, p *progress, ended <-chan struct{}) error {
	logs := b.cluster.Logs()
	deadline := time.NewTimer(b.flags.timeout)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ready, missing := b.readiness(ctx)
		if ready {
			return nil
		}
		p.note(missing)
		select {
		case <-ctx.Done():
			return errors.New("interrupted")
		case <-ended:
			return &client.Problem{What: "the agent ended", Where: filepath.Join(logs, "agent.log"), Why: lastLine(filepath.Join(logs, "agent.log")), Remedy: "correct the cause and run `heddle up` again"}
		case <-deadline.C:
			return &client.Problem{What: "the cluster is not ready in time", Where: missing, Why: "controller: " + lastLine(filepath.Join(logs, "controller.log")),
				Remedy: "the logs are in " + logs + "; a slow machine may need a longer --timeout"}
		case <-tick.C:
		}
	}
}

// awaitPrimary waits until a member has its stream to the primary, for a while.
func (b *bringing) awaitPrimary(ctx context.Context) {
	p := newProgress(b.out)
	p.begin("connect to primary " + b.membership.Primary)
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	problem := ""
	for {
		status, err := client.New(b.cluster.APISocket()).Federation(ctx)
		switch {
		case err == nil && status.Connected:
			p.done()
			return
		case err == nil && status.Problem != "":
			problem = status.Problem
		case err != nil && ctx.Err() == nil:
			problem = err.Error()
		}
		select {
		case <-ctx.Done():
			p.fail()
			fmt.Fprintf(b.err, "warning: no connection to the primary yet, the cluster goes on trying: %s\n", problem)
			return
		case <-tick.C:
		}
	}
}

// firstGiven is the first file descriptor after standard input, output and error.
const firstGiven = 3

// startAgent starts the agent in a session of its own. The channel closes when it ends.
func (b *bringing) startAgent() (<-chan struct{}, error) {
	log, err := os.OpenFile(filepath.Join(b.cluster.Logs(), "agent.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open agent's log: %w", err)
	}
	defer log.Close()
	line := b.agentCommandLine()
	// Files that this process was given, a lock of the calling script for example, are not for what outlives it. A kernel
	// before 5.11 cannot say so.
	_ = unix.CloseRange(firstGiven, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start agent: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		// How it ended is in its log.
		_ = cmd.Wait()
		close(ended)
	}()
	return ended, nil
}

// readiness says whether controller, agent and all gateways are ready, and what is missing.
func (b *bringing) readiness(ctx context.Context) (bool, string) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	api := client.New(b.cluster.APISocket())
	if _, err := api.Status(ctx); err != nil {
		return false, "the controller does not answer yet"
	}
	replicas, err := api.Replicas(ctx)
	if err != nil {
		return false, "the controller does not answer yet"
	}
	var running agent.Status
	if err := api.Do(ctx, http.MethodGet, "/heddle/v1/agent/status", nil, &running); err != nil {
		return false, "the agent does not answer yet"
	}
	found := 0
	for _, r := range replicas {
		if !r.Gateway {
			continue
		}
		found++
		if !r.Ready {
			return false, fmt.Sprintf("%s is %s: %s", r.State.Name, r.State.Phase, r.State.Message)
		}
	}
	if want := 1 + b.options.EastWestGateways; found < want {
		return false, fmt.Sprintf("the agent has reported %d of %d gateways yet", found, want)
	}
	return true, ""
}

func lastLine(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return "no log"
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return lines[len(lines)-1]
}

// printSummary tells what there is now and what to do next.
func (b *bringing) printSummary(ctx context.Context) {
	c, o := b.cluster, b.options
	api := b.connect(c.APISocket())
	replicas, err := api.Replicas(ctx)
	if err != nil {
		return
	}
	fmt.Fprintf(b.out, "\n  cluster   %s\n", c.Name)
	for _, r := range replicas {
		if r.Gateway && r.Workload == agent.IngressGateway {
			address := r.State.Address
			if o.ExposeIngress {
				address = o.Advertise.String()
			}
			fmt.Fprintf(b.out, "  ingress   http://%s/\n", urlHost(address))
		}
	}
	if o.Advertise.IsValid() {
		fmt.Fprintf(b.out, "  gateways  %s, for other clusters\n", hostPort(o.Advertise, cluster.PortEastWest))
	} else {
		fmt.Fprintf(b.out, "  gateways  none for other clusters: no private address was found, and a public one is used only when --advertise names it\n")
	}
	if b.member {
		fmt.Fprintf(b.out, "  mesh      member, primary %s at %s\n", b.membership.Primary, b.membership.Address)
	}
	b.printBypassProblem(ctx, api)
	fmt.Fprintf(b.out, "  API       unix://%s\n", c.APISocket())
	if o.APIAddress.IsValid() {
		fmt.Fprintf(b.out, "            https://%s, see `heddle context --help`\n", o.APIAddress)
	}
	fmt.Fprintf(b.out, "  logs      %s\n", c.Logs())
	if !b.member && o.Advertise.IsValid() {
		// A token is a secret, not for a service's journal, and nobody waits for one after a repair.
		if b.fresh && !b.flags.foreground {
			b.printJoin(ctx, api)
		} else {
			fmt.Fprintf(b.out, "\n`heddle cluster token` makes a join command for another cluster.\n")
		}
	}
	fmt.Fprintf(b.out, "\nNext:\n  heddle apply -f demo/boutique/manifests/    deploy the sample shop\n  heddle check                                prove that everything works\n  heddle down --name %-12s             remove the cluster\n", c.Name)
}

// printBypassProblem says where the TCP bypass is not as it was asked for.
func (b *bringing) printBypassProblem(ctx context.Context, api *client.Client) {
	var status bypass.Status
	if err := api.Do(ctx, http.MethodGet, bypassPath, nil, &status); err == nil && status.Problem != "" {
		fmt.Fprintf(b.out, "  bypass    %s\n", bypassState(status))
	}
}

// printJoin prints the command by which another cluster joins this one.
func (b *bringing) printJoin(ctx context.Context, api *client.Client) {
	t, err := api.Token(ctx, client.TokenRequest{})
	if err != nil {
		fmt.Fprintf(b.err, "warning: no join token: %v\n", err)
		return
	}
	if t.Address == "" {
		t.Address = hostPort(b.options.Advertise, cluster.PortEastWest)
	}
	other := "cluster2"
	if b.cluster.Name == other {
		other = "cluster3"
	}
	flags := ""
	if b.options.Isolated {
		flags += " --isolated"
	}
	if b.options.Family == cluster.IPv6 {
		flags += " --ip-family ipv6"
	}
	fmt.Fprintf(b.out, "\nAnother cluster joins by (once, for %s):\n  heddle up --name %s%s --join %s --token %s\n", duration(t.Expires.Sub(b.now())), other, flags, t.Address, t.Token)
}

func urlHost(address string) string {
	if strings.Contains(address, ":") {
		return "[" + address + "]"
	}
	return address
}

// foreground runs the agent as long as this process: in it, or of an isolated cluster as a child inside.
func (b *bringing) foreground(ctx context.Context, held *lock.File) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		// From here on the agent's own lock keeps others away, and `down` must be possible.
		defer held.Close()
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if ready, _ := b.readiness(ctx); ready {
				b.printSummary(ctx)
				notifyReady()
				return
			}
			if _, alive := agent.Running(b.cluster); alive {
				held.Close()
			}
		}
	}()
	err := b.runForeground(ctx)
	if err != nil && !b.crashed && !agent.Began(b.cluster) {
		b.undo(ctx)
	}
	return err
}

func (b *bringing) runForeground(ctx context.Context) error {
	if !b.options.Isolated {
		return b.runAgent(ctx, b.cluster, b.flags)
	}
	line := b.agentCommandLine()
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = b.out, b.err, "/"
	// An agent that is asked to end leaves its workloads running, for the next one.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("agent: %w", err)
	}
	return nil
}

// keptOwner is the user who may use the API's socket besides root: the one behind sudo, else the one before a repair; 0
// when there is none.
func keptOwner(c cluster.Cluster) (int, error) {
	path := filepath.Join(c.Run(), "owner")
	if uid, err := strconv.Atoi(os.Getenv("SUDO_UID")); err == nil && uid > 0 {
		if err := os.MkdirAll(c.Run(), 0o711); err != nil {
			return 0, fmt.Errorf("make runtime directory: %w", err)
		}
		if err := durable.Write(path, []byte(strconv.Itoa(uid)), 0o600); err != nil {
			return 0, fmt.Errorf("keep owner: %w", err)
		}
		return uid, nil
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for owner: %w", err)
	}
	uid, err := strconv.Atoi(string(content))
	if err != nil {
		return 0, fmt.Errorf("%s: %w; remove the file", path, err)
	}
	return uid, nil
}
