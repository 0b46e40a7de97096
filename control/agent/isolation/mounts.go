package isolation

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/cluster"
)

// ensurePins makes the directory of mount namespaces. It is a private mount: the kernel binds a mount namespace nowhere
// whence it would spread into that namespace itself.
func ensurePins(c cluster.Cluster) error {
	dir := pins(c)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory of mount namespaces: %w", err)
	}
	mounted, err := isMountPoint(dir)
	if err != nil {
		return err
	}
	if !mounted {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s on itself: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mount %s private: %w", dir, err)
	}
	return nil
}

func isMountPoint(dir string) (bool, error) {
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return false, fmt.Errorf("read mounts: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == dir {
			return true, nil
		}
	}
	return false, nil
}

// pinned says whether the cluster's mount namespace has its name.
func pinned(c cluster.Cluster) bool {
	var fs unix.Statfs_t
	return unix.Statfs(c.MountNamespace(), &fs) == nil && fs.Type == unix.NSFS_MAGIC
}

// pin gives a mount namespace its name.
func pin(c cluster.Cluster, namespace string) error {
	f, err := os.OpenFile(c.MountNamespace(), os.O_CREATE|os.O_RDONLY, 0o400)
	if err != nil {
		return fmt.Errorf("name mount namespace: %w", err)
	}
	f.Close()
	if err := unix.Mount(namespace, c.MountNamespace(), "", unix.MS_BIND, ""); err != nil {
		return errors.Join(fmt.Errorf("keep mount namespace of cluster %s: %w", c.Name, err), os.Remove(c.MountNamespace()))
	}
	return nil
}

// unpin takes the name away, and with the last one the directory of names.
func unpin(c cluster.Cluster) error {
	for unix.Unmount(c.MountNamespace(), unix.MNT_DETACH) == nil {
		// A repair may have put one on another.
	}
	if err := os.Remove(c.MountNamespace()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove mount namespace: %w", err)
	}
	left, err := os.ReadDir(pins(c))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for other isolated clusters: %w", err)
	}
	if len(left) > 0 {
		return nil
	}
	for unix.Unmount(pins(c), unix.MNT_DETACH) == nil {
		continue
	}
	if err := os.Remove(pins(c)); err != nil {
		return fmt.Errorf("remove directory of mount namespaces: %w", err)
	}
	return nil
}

// trees are the machine's directories of one cluster, to be mounted elsewhere.
type trees struct{ run, data int }

// openTrees takes them, on a thread that sees the machine's.
func openTrees(c cluster.Cluster) (trees, error) {
	var t trees
	for _, d := range []struct {
		path string
		fd   *int
	}{{c.Run(), &t.run}, {c.Data(), &t.data}} {
		fd, err := unix.OpenTree(unix.AT_FDCWD, d.path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			t.close()
			return trees{}, fmt.Errorf("take directory %s: %w", d.path, err)
		}
		*d.fd = fd
	}
	return t, nil
}

func (t trees) close() {
	for _, fd := range []int{t.run, t.data} {
		if fd > 0 {
			unix.Close(fd)
		}
	}
}

// mount puts the directories where they belong, on a thread inside.
func (t trees) mount(c cluster.Cluster) error {
	for _, d := range []struct {
		path string
		fd   int
	}{{c.Run(), t.run}, {c.Data(), t.data}} {
		if err := os.MkdirAll(d.path, 0o711); err != nil {
			return fmt.Errorf("make directory inside: %w", err)
		}
		if err := unix.MoveMount(d.fd, "", unix.AT_FDCWD, d.path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount %s inside: %w", d.path, err)
		}
		if err := unix.Mount("", d.path, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("make mount %s private: %w", d.path, err)
		}
	}
	return nil
}

// makeMounts makes the cluster's mount namespace. It gets its name when it is complete.
//
// The kernel binds a mount namespace only where its number is greater than the number of the namespace that it is bound
// in, so that none can keep itself alive. Since Linux 6.18 each processor gives out numbers of its own: where this machine
// is itself a container, a new namespace may have a lower one. Made on the processor that made the container's, it has not.
func makeMounts(c cluster.Cluster) error {
	err := makeMountsOn(c, nil)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	var allowed unix.CPUSet
	if affinityErr := unix.SchedGetaffinity(0, &allowed); affinityErr != nil {
		return errors.Join(err, fmt.Errorf("look up processors: %w", affinityErr))
	}
	for processor := range len(allowed) * 64 {
		if !allowed.IsSet(processor) {
			continue
		}
		var one unix.CPUSet
		one.Set(processor)
		if err = makeMountsOn(c, &one); !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	return err
}

// makeMountsOn makes it on the given processors.
func makeMountsOn(c cluster.Cluster, processors *unix.CPUSet) error {
	own, err := openTrees(c)
	if err != nil {
		return err
	}
	defer own.close()
	type made struct {
		thread int
		err    error
	}
	ready, named := make(chan made), make(chan struct{})
	go func() {
		// Stays locked: the thread is in the new namespace and dies with this goroutine, once it has its name.
		runtime.LockOSThread()
		m := made{thread: unix.Gettid()}
		if processors != nil {
			m.err = unix.SchedSetaffinity(0, processors)
		}
		if m.err == nil {
			m.err = furnish(c, own)
		}
		ready <- m
		<-named
	}()
	defer close(named)
	m := <-ready
	if m.err != nil {
		return m.err
	}
	return pin(c, fmt.Sprintf("/proc/self/task/%d/ns/mnt", m.thread))
}

// furnish moves the thread into a new mount namespace, in which the roots of run and data hold this cluster alone, and
// network namespaces have names of its own.
func furnish(c cluster.Cluster, own trees) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	// Slave, not private: what the machine unmounts must not be kept alive here.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("detach mounts: %w", err)
	}
	// The names that this namespace was made with would keep the other clusters' namespaces alive.
	for unix.Unmount(network.Path(""), unix.MNT_DETACH) == nil {
		continue
	}
	for _, dir := range []string{c.RunRoot, c.DataRoot, network.Path("")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
		if err := unix.Mount("heddle-"+c.Name, dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=1m,mode=0711"); err != nil {
			return fmt.Errorf("hide other clusters in %s: %w", dir, err)
		}
	}
	return own.mount(c)
}

// repairMounts puts the cluster's directories back into its mount namespace when they are not the machine's any more: its
// run directory was removed and made again, for example.
func repairMounts(c cluster.Cluster) error {
	here, err := identities(c)
	if err != nil {
		return err
	}
	same := false
	if err := within(c, func() error {
		there, err := identities(c)
		same = err == nil && there == here
		return nil
	}); err != nil || same {
		return err
	}
	own, err := openTrees(c)
	if err != nil {
		return err
	}
	defer own.close()
	return within(c, func() error {
		for _, dir := range []string{c.Run(), c.Data()} {
			for unix.Unmount(dir, unix.MNT_DETACH) == nil {
				continue
			}
		}
		return own.mount(c)
	})
}

// identities tells the cluster's directories from others in the same place.
func identities(c cluster.Cluster) ([4]uint64, error) {
	var out [4]uint64
	for i, dir := range []string{c.Run(), c.Data()} {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			return out, fmt.Errorf("look at %s: %w", dir, err)
		}
		out[2*i], out[2*i+1] = st.Dev, st.Ino
	}
	return out, nil
}
