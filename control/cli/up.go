package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/agent/lock"
	"heddle.io/heddle/control/agent/preflight"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/server/client"
)

// upOptions are the flags of `up`.
type upOptions struct {
	name       string
	proxy      string
	foreign    bool
	foreground bool
	timeout    time.Duration
}

func (s *session) upCommand() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use: "up", Short: "Start a cluster on this machine, or repair it", Args: cobra.NoArgs,
		Long: "Start a cluster on this machine: controller, certificate authority, agent and ingress gateway.\n\n" +
			"Prerequisites are checked first; nothing is changed unless all are met. On a cluster that runs, up repairs what is broken.",
		Example: "  sudo heddle up --name cluster1",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.name == "" {
				o.name = orDefault(s.clusterName, "cluster1")
			}
			c, err := cluster.New(o.name)
			if err != nil {
				return usageError{err}
			}
			bin, self, err := ownPlace()
			if err != nil {
				return err
			}
			if err := s.up(cmd.Context(), c, o, preflight.Machine(c, bin), bin, self); err != nil {
				return err
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&o.name, "name", "", `the cluster's name (default "cluster1")`)
	cmd.Flags().StringVar(&o.proxy, "proxy", "heddle-proxy", "the proxy program: a path, or a name looked up beside this program and in PATH")
	cmd.Flags().BoolVar(&o.foreign, "foreign-proxy", false, "the proxy takes a stock Envoy's arguments")
	cmd.Flags().BoolVar(&o.foreground, "foreground", false, "stay in the foreground, as systemd units want it")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 90*time.Second, "how long to wait until the cluster is ready")
	return cmd
}

// ownPlace is this program's directory and path.
func ownPlace() (bin, self string, err error) {
	self, err = os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", "", fmt.Errorf("find own program: %w", err)
	}
	return filepath.Dir(self), self, nil
}

func (s *session) up(ctx context.Context, c cluster.Cluster, o upOptions, probes preflight.Probes, bin, self string) error {
	// Without root not even the lock can be taken.
	if probes.UID() != 0 {
		return s.refuse(preflight.Check(probes, preflight.Requirements{}))
	}
	held, err := lock.Take(c.Lock())
	if errors.Is(err, lock.ErrHeld) {
		return &client.Problem{What: "another `heddle up` or `heddle down` of this cluster is at work", Where: c.Lock(), Remedy: "wait until it is done"}
	}
	if err != nil {
		return err
	}
	defer held.Close()
	record, running := agent.Running(c)
	if !running {
		if err := s.refuse(preflight.Check(probes, requirements(c, o))); err != nil {
			// Neither the lock's file nor an empty directory is a trace worth keeping.
			_, _ = os.Remove(c.Lock()), os.Remove(c.RunRoot)
			return err
		}
	}
	if o.foreground {
		if running {
			return &client.Problem{What: fmt.Sprintf("cluster %q is already running", c.Name), Where: fmt.Sprintf("agent pid %d", record.PID), Remedy: "stop it first with `heddle down`"}
		}
		return s.foreground(ctx, c, o, held)
	}
	if running {
		ready, missing := readiness(ctx, c)
		if ready {
			fmt.Fprintf(s.out, "Cluster %q is already running.\n", c.Name)
			s.printSummary(ctx, c)
			return nil
		}
		fmt.Fprintf(s.out, "Cluster %q is running but not healthy (%s); waiting for its repair.\n", c.Name, missing)
	} else {
		fmt.Fprintf(s.out, "Starting cluster %q\n", c.Name)
	}
	fresh := !exists(c.Data())
	// The rest of a crashed cluster may still serve: a repair that fails leaves it alone.
	crashed := exists(c.Run())
	if err := s.bringUp(ctx, c, o, self, running); err != nil {
		if !running && !crashed {
			// Nothing half done: what was there before stays, the rest goes.
			if downErr := agent.Down(context.WithoutCancel(ctx), c, !fresh, discardLog()); downErr != nil {
				fmt.Fprintf(s.err, "warning: cleaning up: %v\n", downErr)
			}
			_, _ = os.Remove(c.Lock()), os.Remove(c.RunRoot)
		}
		return err
	}
	if content, err := s.contexts.read(); err == nil && content.Current == "" {
		if err := s.contexts.write(contextContent{Current: c.Name}); err != nil {
			fmt.Fprintf(s.err, "warning: current context not kept: %v\n", err)
		}
	}
	s.printSummary(ctx, c)
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

func requirements(c cluster.Cluster, o upOptions) preflight.Requirements {
	return preflight.Requirements{Data: c.Data(), Run: c.Run(), Proxy: o.proxy,
		Addresses: []string{fmt.Sprintf("%s:%d", cluster.IPv4.Ranges().Gateway().Addr(), cluster.PortDNS)}}
}

// refuse prints every finding; with any, the command has failed.
func (s *session) refuse(found []preflight.Finding) error {
	if len(found) == 0 {
		return nil
	}
	for _, f := range found {
		s.printFinding(f)
	}
	fmt.Fprintln(s.err, "Nothing was changed.")
	return silentError{}
}

// agentArgs is the agent's command line.
func agentArgs(c cluster.Cluster, o upOptions) []string {
	args := []string{"agent", "run", "--name", c.Name, "--proxy", o.proxy}
	if o.foreign {
		args = append(args, "--foreign-proxy")
	}
	return args
}

// bringUp starts the agent and waits until everything is ready.
func (s *session) bringUp(ctx context.Context, c cluster.Cluster, o upOptions, self string, running bool) error {
	p := newProgress(s.out)
	var ended <-chan struct{}
	if !running {
		p.begin("start the agent")
		if err := os.MkdirAll(c.Logs(), 0o755); err != nil {
			p.fail()
			return &client.Problem{What: "the log directory cannot be made", Where: c.Logs(), Why: reason(err), Remedy: "make its file system writable"}
		}
		// The data directory holds keys.
		if err := os.Chmod(c.Data(), 0o711); err != nil {
			p.fail()
			return fmt.Errorf("guard data directory: %w", err)
		}
		done, err := startAgent(c, o, self)
		if err != nil {
			p.fail()
			return err
		}
		ended = done
		p.done()
	}
	p.begin("controller and gateway ready")
	deadline := time.NewTimer(o.timeout)
	defer deadline.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	missing := ""
	for {
		select {
		case <-ctx.Done():
			p.fail()
			return errors.New("interrupted")
		case <-ended:
			p.fail()
			return &client.Problem{What: "the agent ended", Where: filepath.Join(c.Logs(), "agent.log"), Why: lastLine(filepath.Join(c.Logs(), "agent.log")), Remedy: "correct the cause and run `heddle up` again"}
		case <-deadline.C:
			p.fail()
			return &client.Problem{What: "the cluster is not ready in time", Where: missing, Why: "controller: " + lastLine(filepath.Join(c.Logs(), "controller.log")),
				Remedy: "the logs are in " + c.Logs() + "; a slow machine may need a longer --timeout"}
		case <-tick.C:
		}
		var ready bool
		if ready, missing = readiness(ctx, c); ready {
			p.done()
			return nil
		}
		p.note(missing)
	}
}

// startAgent starts the agent in a session of its own. The channel closes when it ends.
func startAgent(c cluster.Cluster, o upOptions, self string) (<-chan struct{}, error) {
	log, err := os.OpenFile(filepath.Join(c.Logs(), "agent.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open agent's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(self, agentArgs(c, o)...)
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

// readiness says whether controller and ingress gateway are ready, and what is missing.
func readiness(ctx context.Context, c cluster.Cluster) (bool, string) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	api := client.New(c.APISocket())
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
	for _, r := range replicas {
		if r.Gateway {
			if r.Ready {
				return true, ""
			}
			return false, "gateway " + r.State.Phase + ": " + r.State.Message
		}
	}
	return false, "the agent has not reported yet"
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
func (s *session) printSummary(ctx context.Context, c cluster.Cluster) {
	replicas, err := client.New(c.APISocket()).Replicas(ctx)
	if err != nil {
		return
	}
	fmt.Fprintf(s.out, "\n  cluster   %s\n", c.Name)
	for _, r := range replicas {
		if r.Gateway {
			fmt.Fprintf(s.out, "  ingress   http://%s/\n", r.State.Address)
		}
	}
	fmt.Fprintf(s.out, "  API       unix://%s\n  logs      %s\n", c.APISocket(), c.Logs())
	fmt.Fprintf(s.out, "\nNext:\n  heddle apply -f demo/boutique/manifests/    deploy the sample shop\n  heddle check                                prove that everything works\n  heddle down --name %-12s             remove the cluster\n", c.Name)
}

// foreground runs the agent in this process.
func (s *session) foreground(ctx context.Context, c cluster.Cluster, o upOptions, held *lock.File) error {
	if err := os.MkdirAll(c.Logs(), 0o755); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
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
			if ready, _ := readiness(ctx, c); ready {
				s.printSummary(ctx, c)
				notifyReady()
				return
			}
			if _, alive := agent.Running(c); alive {
				held.Close()
			}
		}
	}()
	return s.runAgent(ctx, c, o)
}

// keptOwner is the user who may use the API's socket besides root: the one behind sudo, else the one before a repair; 0
// when there is none.
func keptOwner(c cluster.Cluster) (int, error) {
	path := filepath.Join(c.Run(), "owner")
	if uid, err := strconv.Atoi(os.Getenv("SUDO_UID")); err == nil && uid > 0 {
		if err := os.MkdirAll(c.Run(), 0o711); err != nil {
			return 0, fmt.Errorf("make runtime directory: %w", err)
		}
		if err := os.WriteFile(path, []byte(strconv.Itoa(uid)), 0o600); err != nil {
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
