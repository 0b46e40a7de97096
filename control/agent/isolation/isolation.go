// Package isolation gives a cluster a machine of its own on a shared one: a network namespace, which a cable joins to the
// bridge of all isolated clusters, and a mount namespace, in which the other clusters' data, run directories, sockets and
// namespaces do not exist. What runs inside needs to know nothing of it: the namespaces are its host.
//
// Both have names, so that they outlive every process of the cluster: an agent that died is started again where its
// workloads run.
package isolation

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/users"
	"heddle.io/heddle/control/cluster"
)

// Reserve chooses what no other cluster of this machine has: the block of user ids, and of an isolated cluster the address
// among the isolated ones. It keeps both with the options, so that they are the same after a restart of the cluster or the
// machine. What the options name already stays, unless another cluster has it.
func Reserve(c cluster.Cluster, o cluster.Options) (cluster.Options, error) {
	held, err := network.LockMachine(c)
	if err != nil {
		return o, err
	}
	defer held.Close()
	taken, blocks, err := reserved(c)
	if err != nil {
		return o, err
	}
	if o.UserBlock == 0 || blocks[o.UserBlock] != "" {
		o.UserBlock = 1
		for blocks[o.UserBlock] != "" {
			o.UserBlock++
		}
		if o.UserBlock >= users.Blocks {
			return o, fmt.Errorf("no user ids are left for cluster %s: %d clusters of this machine have some; remove some with `heddle down`", c.Name, len(blocks))
		}
	}
	ranges := o.Family.Ranges()
	if o.Isolated && (!ranges.WAN.Contains(o.Advertise) || taken[o.Advertise] != "") {
		address := ranges.Host().Addr().Next()
		for taken[address] != "" {
			address = address.Next()
		}
		// The last address of an IPv4 network is for broadcasts.
		if !ranges.WAN.Contains(address.Next()) {
			return o, fmt.Errorf("no address is left in %s for cluster %s: %d isolated clusters have one; remove some with `heddle down`", ranges.WAN, c.Name, len(taken))
		}
		o.Advertise = address
	}
	if err := os.MkdirAll(c.Data(), 0o711); err != nil {
		return o, fmt.Errorf("make data directory: %w", err)
	}
	return o, c.Keep(o)
}

// reserved are the addresses of the other isolated clusters of this machine, and the blocks of user ids of all others,
// running or not.
func reserved(c cluster.Cluster) (addresses map[netip.Addr]string, blocks map[int]string, err error) {
	entries, err := os.ReadDir(c.DataRoot)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("look for other clusters: %w", err)
	}
	addresses, blocks = map[netip.Addr]string{}, map[int]string{}
	for _, e := range entries {
		other, err := cluster.New(e.Name())
		if err != nil || other.Name == c.Name || !e.IsDir() {
			continue
		}
		other.DataRoot = c.DataRoot
		o, err := other.Options()
		if err != nil {
			return nil, nil, err
		}
		if o.Isolated && o.Advertise.IsValid() {
			addresses[o.Advertise] = other.Name
		}
		if o.UserBlock != 0 {
			blocks[o.UserBlock] = other.Name
		}
	}
	return addresses, blocks, nil
}

// Ensure makes the namespaces of a cluster whose options were reserved, or repairs them; processes inside notice nothing.
// Its data and run directories are made. agent is the process id of its running agent, or 0: names that were lost are
// found again by it.
func Ensure(c cluster.Cluster, o cluster.Options, agent int) error {
	for _, dir := range []string{c.Data(), c.Run()} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	// The machine routes between its clusters and the world.
	if err := network.Forwarding(c, o.Family); err != nil {
		return err
	}
	held, err := network.LockMachine(c)
	if err != nil {
		return err
	}
	defer held.Close()
	if agent != 0 && !network.Exists(c.IsolatedNetns()) {
		if err := network.Adopt(c.IsolatedNetns(), agent); err != nil {
			return err
		}
	}
	if err := network.AttachWAN(c, o.Advertise); err != nil {
		return err
	}
	if err := ensurePins(c); err != nil {
		return err
	}
	if agent != 0 && !pinned(c) {
		if err := pin(c, fmt.Sprintf("/proc/%d/ns/mnt", agent)); err != nil {
			return err
		}
	}
	if pinned(c) {
		return repairMounts(c)
	}
	return makeMounts(c)
}

// Remove removes the namespaces and whoever is still inside, and with the last isolated cluster what they shared. What is
// not there is no error.
func Remove(c cluster.Cluster) error {
	if len(Traces(c)) == 0 {
		return nil
	}
	held, err := network.LockMachine(c)
	if err != nil {
		return err
	}
	defer held.Close()
	return errors.Join(evict(c), network.DetachWAN(c), unpin(c))
}

// Traces lists what there is of the cluster's isolation on this machine.
func Traces(c cluster.Cluster) []string {
	var out []string
	if _, err := os.Lstat(network.Path(c.IsolatedNetns())); err == nil {
		out = append(out, c.IsolatedNetns())
	}
	if network.HasWAN(c) {
		out = append(out, "interface "+c.WANVeth())
	}
	if _, err := os.Lstat(c.MountNamespace()); err == nil {
		out = append(out, c.MountNamespace())
	}
	return out
}

// evictTimeout is how long killed processes may take to be gone.
const evictTimeout = 10 * time.Second

// evict ends every process in the cluster's namespaces: those in its control groups have been ended already, others were
// started by hand.
func evict(c cluster.Cluster) error {
	deadline := time.Now().Add(evictTimeout)
	for {
		pids, err := inside(c)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := end(pid, deadline); err != nil {
				return fmt.Errorf("process %d is inside of cluster %s and cannot be ended: %w", pid, c.Name, err)
			}
		}
	}
}

// end kills a process and waits until it is gone.
func end(pid int, deadline time.Time) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return syscall.ETIMEDOUT
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// inside lists the processes in the cluster's own namespaces and in those of its workloads.
func inside(c cluster.Cluster) ([]int, error) {
	found := map[int]bool{}
	collect := func(kind, path string) error {
		inode, err := network.Inode(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		var pids []int
		if err == nil {
			pids, err = network.PIDsOf(kind, inode)
		}
		for _, pid := range pids {
			found[pid] = true
		}
		return err
	}
	var errs []error
	if network.Exists(c.IsolatedNetns()) {
		errs = append(errs, collect("net", network.Path(c.IsolatedNetns())))
	}
	if pinned(c) {
		errs = append(errs, collect("mnt", c.MountNamespace()), within(c, func() error {
			names, err := network.Names(c.NetnsPrefix())
			errs := []error{err}
			for _, name := range names {
				errs = append(errs, collect("net", network.Path(name)))
			}
			return errors.Join(errs...)
		}))
	}
	pids := make([]int, 0, len(found))
	for pid := range found {
		pids = append(pids, pid)
	}
	return pids, errors.Join(errs...)
}

// pins is the directory that mount namespaces are bound to.
func pins(c cluster.Cluster) string { return filepath.Dir(c.MountNamespace()) }
