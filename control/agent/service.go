package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
)

// service is a process of the cluster itself, which its agent keeps running and which survives the agent: the controller,
// and the one that answers names.
type service struct {
	name        string
	command     []string
	cluster     cluster.Cluster
	launcher    []string
	log         *slog.Logger
	hierarchies func() process.Hierarchies
	// environment is what the process has besides the agent's own; adopted is told of one that an earlier agent started.
	// Either may be nil.
	environment func() ([]string, error)
	adopted     func(pid int)

	mu      sync.Mutex
	process *process.Process
}

func (a *Agent) newService(name string, command []string) *service {
	return &service{name: name, command: command, cluster: a.config.Cluster, launcher: a.config.Launcher, log: a.log.With("service", name),
		hierarchies: func() process.Hierarchies { return a.hierarchies }}
}

// services of a cluster, in the order in which they may be stopped.
var services = []string{"controller", "dns"}

func serviceRecordPath(c cluster.Cluster, name string) string {
	return filepath.Join(c.Run(), "agent", name+".json")
}

func serviceGroup(c cluster.Cluster, name string) string { return filepath.Join(c.Cgroup(), name) }

// Answering says whether the cluster's DNS process runs, which may be so without an agent.
func Answering(c cluster.Cluster) bool {
	hierarchies, err := process.Hierarchy()
	return err == nil && hierarchies.Populated(serviceGroup(c, "dns"))
}

// supervise keeps the process running until ctx ends, which leaves it alone. One that an earlier agent started is taken
// over.
func (s *service) supervise(ctx context.Context) {
	running := s.find()
	if running != nil && s.adopted != nil {
		s.adopted(running.Record.PID)
	}
	var pauses backoff
	for ctx.Err() == nil {
		began := time.Now()
		if running == nil {
			var err error
			if running, err = s.start(); err != nil {
				s.log.Error("cannot be started", "error", err)
			}
		}
		if running != nil {
			s.set(running)
			select {
			case <-ctx.Done():
				return
			case <-running.Done():
			}
			reason, _ := running.Exit()
			s.log.Warn("ended", "reason", reason, "log", s.logPath())
			running = nil
		}
		pause := pauses.next(time.Since(began))
		if time.Since(began) > 5*time.Second {
			// It ran: no reason to think that the next one will not.
			pause = 50 * time.Millisecond
		}
		if !wait(ctx, pause) {
			return
		}
	}
}

func (s *service) logPath() string { return filepath.Join(s.cluster.Logs(), s.name+".log") }

// start starts the process in a control group of its own, by which `down` finds it when all records are lost. Workloads'
// groups have a dot in their names, so none is called like it.
func (s *service) start() (*process.Process, error) {
	hierarchies, group := s.hierarchies(), serviceGroup(s.cluster, s.name)
	groups, _, err := hierarchies.Create(group, process.Limits{})
	if err != nil {
		return nil, err
	}
	environment := os.Environ()
	if s.environment != nil {
		more, err := s.environment()
		if err != nil {
			return nil, err
		}
		environment = append(environment, more...)
	}
	return process.Start(process.Spec{Command: s.command, Env: environment, Files: proxyFiles, Cgroups: groups, Label: s.name}, s.launchFile(), s.logPath(), s.launcher,
		func(record process.Record) error {
			return process.WriteRecord(serviceRecordPath(s.cluster, s.name), record)
		})
}

func (s *service) launchFile() string {
	return filepath.Join(s.cluster.Run(), "agent", s.name+"-launch.json")
}

// find finds the process that an earlier agent started. What else is in its group holds what a new one needs, and is
// killed.
func (s *service) find() *process.Process {
	search := process.Search{Hierarchies: s.hierarchies(), Group: serviceGroup(s.cluster, s.name), File: s.launchFile(), Label: s.name}
	var record process.Record
	switch err := process.ReadRecord(serviceRecordPath(s.cluster, s.name), &record); {
	case err == nil:
		search.Record = &record
	case !errors.Is(err, os.ErrNotExist):
		s.log.Warn("the record is unreadable; looking for what runs", "error", err)
		search.Lost = true
	}
	running, _ := process.Find(search)
	return running
}

func (s *service) set(p *process.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = p
}

// pid of the process, 0 when none runs.
func (s *service) pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil || !s.process.Running() {
		return 0
	}
	return s.process.Record.PID
}

// stop ends the process, once nobody supervises it any more.
func (s *service) stop() {
	s.mu.Lock()
	running := s.process
	s.mu.Unlock()
	if running != nil {
		running.Stop(stopGrace)
	}
}
