// Package network makes and removes the kernel's side of workloads: network namespaces, veth pairs, the cluster's
// bridge, addresses, and the nftables rules that bring a workload's traffic to its proxy.
//
// Kernel objects are found by their names (package cluster), never by remembered handles, so that a process that knows
// nothing of the past can repair or remove them.
package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The main thread cannot end, so it must never be one of those that go into a namespace and die there: it would keep the
// namespace alive, and /proc/self would tell of the wrong one. Locked in the program's initialization, it runs main only.
func init() { runtime.LockOSThread() }

// netnsDir is where `ip netns` keeps names.
const netnsDir = "/run/netns"

// Path is the file that stands for a named network namespace.
func Path(name string) string { return filepath.Join(netnsDir, name) }

// In runs f with its thread inside the network namespace. Sockets made and processes started by f belong to it.
func In(name string, f func() error) error {
	return inPath(Path(name), f)
}

func inPath(path string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open own network namespace: %w", err)
			return
		}
		defer home.Close()
		target, err := netns.GetFromPath(path)
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open network namespace %s: %w", path, err)
			return
		}
		defer target.Close()
		if err := netns.Set(target); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("enter network namespace %s: %w", path, err)
			return
		}
		err = f()
		// A thread that cannot return stays locked, so that the runtime destroys it with this goroutine.
		if backErr := netns.Set(home); backErr == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// Dial connects from inside the namespace. The address is an IP and a port: names are not resolved.
func Dial(ctx context.Context, name, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	var connection net.Conn
	err := In(name, func() error {
		var err error
		var dialer net.Dialer
		connection, err = dialer.DialContext(ctx, network, address)
		return err
	})
	return connection, err
}

// create makes a named namespace. A name whose namespace is gone (a plain file left by a crash) is replaced.
func create(name string) error {
	if Exists(name) {
		return nil
	}
	if err := shareNames(); err != nil {
		return err
	}
	_ = os.Remove(Path(name))
	done := make(chan error, 1)
	go func() {
		// Stays locked: the thread is in the new namespace and dies with this goroutine.
		runtime.LockOSThread()
		done <- func() error {
			f, err := os.OpenFile(Path(name), os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
			if err != nil {
				return fmt.Errorf("name network namespace: %w", err)
			}
			f.Close()
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				_ = os.Remove(Path(name))
				return fmt.Errorf("make network namespace %s: %w", name, err)
			}
			if err := unix.Mount("/proc/thread-self/ns/net", Path(name), "", unix.MS_BIND, ""); err != nil {
				_ = os.Remove(Path(name))
				return fmt.Errorf("keep network namespace %s: %w", name, err)
			}
			return nil
		}()
	}()
	return <-done
}

// shareNames makes the directory of names a shared mount, as `ip netns add` does: otherwise mount namespaces that were
// made while a name existed would keep its network namespace alive after it is deleted.
func shareNames() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", netnsDir, err)
	}
	err := unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("share mount %s: %w", netnsDir, err)
	}
	if err := unix.Mount(netnsDir, netnsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s on itself: %w", netnsDir, err)
	}
	if err := unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share mount %s: %w", netnsDir, err)
	}
	return nil
}

// Exists says whether the name stands for a living network namespace.
func Exists(name string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(Path(name), &fs) != nil {
		return false
	}
	return fs.Type == unix.NSFS_MAGIC
}

// Inode identifies a namespace of any kind; of a network namespace it equals the inode of /proc/<pid>/ns/net of the processes in it.
func Inode(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("look at namespace %s: %w", path, err)
	}
	return st.Ino, nil
}

// Names lists the named namespaces that start with the prefix.
func Names(prefix string) ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// PIDs lists the processes of this machine that are in the namespace.
func PIDs(name string) ([]int, error) {
	want, err := Inode(Path(name))
	if err != nil {
		return nil, err
	}
	return PIDsOf("net", want)
}

// PIDsOf lists the processes of this machine, the calling one excepted, that are in a namespace of a kind ("net", "mnt").
func PIDsOf(kind string, inode uint64) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// Processes end while they are listed.
		if got, err := Inode(fmt.Sprintf("/proc/%d/ns/%s", pid, kind)); err == nil && got == inode {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Adopt gives the network namespace of a process a name.
func Adopt(name string, pid int) error {
	if err := shareNames(); err != nil {
		return err
	}
	f, err := os.OpenFile(Path(name), os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("name network namespace: %w", err)
	}
	f.Close()
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/net", pid), Path(name), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("name network namespace of process %d %s: %w", pid, name, err)
	}
	return nil
}

// Delete removes a name, and with its last process the namespace, its veth pair and its rules.
func Delete(name string) error {
	path := Path(name)
	for range 16 {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			break
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove network namespace %s: %w", name, err)
	}
	return nil
}

// sysctl writes a setting of the calling thread's network namespace. The key is a path below /proc/sys, for names of
// interfaces may have dots.
func sysctl(key, value string) error {
	if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", key, value, err)
	}
	return nil
}

// nftTimeout bounds one run of nft.
const nftTimeout = 20 * time.Second

// soNetnsCookie is SO_NETNS_COOKIE (Linux 5.14).
const soNetnsCookie = 71

// Cookie is the number by which eBPF programs know a network namespace, given by its file. The kernel gives it to no other until
// the machine restarts.
func Cookie(path string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err == nil && fs.Type != unix.NSFS_MAGIC {
		// Left by who was killed between unmounting it and removing its file.
		return 0, fmt.Errorf("%s is no namespace any more: %w", path, os.ErrNotExist)
	}
	var cookie uint64
	err := inPath(path, func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("make a socket in %s: %w", path, err)
		}
		defer unix.Close(fd)
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, soNetnsCookie)
		if err != nil {
			return fmt.Errorf("ask for the cookie of %s, which needs Linux 5.14: %w", path, err)
		}
		return nil
	})
	return cookie, err
}
