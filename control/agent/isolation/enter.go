package isolation

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/cluster"
)

// Exec turns the calling process into a program inside of the cluster's namespaces. It returns only when it failed.
func Exec(c cluster.Cluster, command, environment []string) error {
	// Until exec makes this thread the process, namespaces are the thread's.
	runtime.LockOSThread()
	if err := enterNetwork(c); err != nil {
		return err
	}
	if err := enterMounts(c); err != nil {
		return err
	}
	if err := unix.Exec(command[0], command, environment); err != nil {
		return fmt.Errorf("start %s: %w", command[0], err)
	}
	return nil
}

// within runs f on a thread that sees the cluster's mounts. f must not start threads or goroutines: they would not.
func within(c cluster.Cluster, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Stays locked: a thread with a view of its own cannot go back, and dies with this goroutine.
		runtime.LockOSThread()
		err := enterMounts(c)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// enterNetwork moves the thread. It comes first: the name is not to be found among the cluster's own mounts.
func enterNetwork(c cluster.Cluster) error {
	if !network.Exists(c.IsolatedNetns()) {
		return notIsolated(c)
	}
	return join(network.Path(c.IsolatedNetns()), unix.CLONE_NEWNET)
}

func enterMounts(c cluster.Cluster) error {
	if !pinned(c) {
		return notIsolated(c)
	}
	// The kernel changes the mounts only of threads that share root and working directory with no other.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("part from other threads: %w", err)
	}
	if err := join(c.MountNamespace(), unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("enter working directory: %w", err)
	}
	return nil
}

func join(path string, kind int) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open namespace: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), kind); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	return nil
}

func notIsolated(c cluster.Cluster) error {
	return fmt.Errorf("cluster %s has no namespaces of its own on this machine; `sudo heddle up --name %s` repairs an isolated one", c.Name, c.Name)
}
