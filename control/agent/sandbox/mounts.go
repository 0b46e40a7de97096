package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Namespaces that a launcher must have been born into (clone flags): others' processes, mounts, shared memory and host name
// do not exist there. The network namespace is entered by name.
const Namespaces = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// Places that are never shown: sockets of the machine's services, and what only its administrators read. A workload that
// runs as root owns most of these files, so that their mode alone does not keep it out.
var (
	hiddenDirs = []string{
		"/run", "/root", "/boot", "/etc/ssh", "/etc/ssl/private", "/etc/pki/tls/private", "/etc/letsencrypt", "/etc/sudoers.d", "/etc/kubernetes",
		"/etc/wireguard", "/etc/openvpn", "/etc/ppp", "/etc/netplan", "/etc/NetworkManager", "/var/backups", "/var/cache/debconf", "/var/log", "/var/spool",
		"/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/etcd", "/var/lib/libvirt", "/var/lib/lxd",
		"/var/lib/incus", "/var/snap", "/var/lib/snapd", "/var/lib/rancher", "/var/lib/cloud", "/var/lib/samba", "/var/lib/sss", "/var/lib/gssproxy",
		"/var/lib/private", "/var/lib/systemd", "/lost+found",
	}
	hiddenFiles = []string{"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/krb5.keytab", "/etc/ipsec.secrets", "/etc/security/opasswd"}
	// ownDirs are the process's own.
	ownDirs = []string{"/tmp", "/var/tmp"}
	// What the kernel shows of the whole machine, as Docker masks it, with what it tells of others' memory.
	maskedProc = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/kmsg", "/proc/kpagecgroup",
		"/proc/kpagecount", "/proc/kpageflags", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/slabinfo", "/proc/timer_list",
		"/proc/timer_stats", "/proc/vmallocinfo", "/proc/dynamic_debug",
	}
	readOnlyProc = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/proc/mtrr", "/proc/pressure"}
	maskedSys    = []string{"/sys/firmware", "/sys/devices/virtual/powercap"}
)

const resolvConf = "/etc/resolv.conf"

// tree is a part of the machine's files that is to be seen where it is, once what is above it is hidden.
type tree struct {
	path string
	fd   int
	dir  bool
}

// Furnish changes the mount namespace of the calling thread, which must be its own.
func Furnish(c Config) error {
	// Private, not slave: what the machine mounts from now on would come here as it is there, to be written to.
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("part from the machine's mounts: %w", err)
	}
	trees, resolv, err := take(c)
	if err != nil {
		return err
	}
	// All that is looked for is looked for before what it may lead through is hidden.
	h := hiddenBy(c)
	if c.Resolv != "" {
		h.files = append(h.files, resolvConf)
	}
	if err := detach(slices.Concat(h.dirs, places(ownDirs))); err != nil {
		return err
	}
	if err := restrict(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
		return err
	}
	if err := private(); err != nil {
		return err
	}
	own, err := rebuild(h)
	if err != nil {
		return err
	}
	covered, err := hide(h, own)
	if err != nil {
		return err
	}
	if c.Resolv != "" {
		path := resolvConf
		if link, err := filepath.EvalSymlinks(path); err == nil {
			path = link
		}
		trees = append(trees, tree{path: path, fd: resolv})
	}
	for _, t := range trees {
		if err := t.show(); err != nil {
			return err
		}
	}
	for _, dir := range slices.Concat(own, covered) {
		if err := restrict(unix.AT_FDCWD, dir, 0, unix.MOUNT_ATTR_RDONLY); err != nil {
			return err
		}
	}
	return errors.Join(devices(), kernel())
}

// take takes what must stay visible, before it is hidden.
func take(c Config) (trees []tree, resolv int, err error) {
	covers := slices.Concat(ownDirs, hiddenDirs, places(hiddenDirs))
	if program, err := filepath.EvalSymlinks(c.Program); err == nil {
		for _, path := range []string{c.Program, program} {
			// Whatever is configured, the cluster's own files are not shown.
			if below(path, covers) && !below(path, c.Hide) && !below(path, places(c.Hide)) {
				t, err := clone(program)
				if err != nil {
					return nil, 0, err
				}
				t.path = path
				trees = append(trees, t)
			}
		}
	}
	for _, dir := range c.Keep {
		t, err := clone(dir)
		if err != nil {
			return nil, 0, err
		}
		t.dir = true
		trees = append(trees, t)
	}
	if c.Resolv != "" {
		t, err := clone(c.Resolv)
		if err != nil {
			return nil, 0, err
		}
		resolv = t.fd
	}
	return trees, resolv, nil
}

func below(path string, dirs []string) bool {
	for _, dir := range dirs {
		if strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") {
			return true
		}
	}
	return false
}

func clone(path string) (tree, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return tree{}, fmt.Errorf("take %s: %w", path, err)
	}
	return tree{path: path, fd: fd}, restrict(fd, "", unix.AT_EMPTY_PATH, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

// show puts the tree where it was. There is nothing there, or only what hides it.
func (t tree) show() error {
	defer unix.Close(t.fd)
	dir := t.path
	if !t.dir {
		dir = filepath.Dir(t.path)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make place for %s: %w", t.path, err)
	}
	if _, err := os.Lstat(t.path); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(t.path, nil, 0o644); err != nil {
			return fmt.Errorf("make place for %s: %w", t.path, err)
		}
	}
	if err := unix.MoveMount(t.fd, "", unix.AT_FDCWD, t.path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("show %s: %w", t.path, err)
	}
	return nil
}

// restrict adds attributes to a mount.
func restrict(fd int, path string, flags uint, attributes uint64) error {
	if err := unix.MountSetattr(fd, path, flags, &unix.MountAttr{Attr_set: attributes}); err != nil {
		return fmt.Errorf("restrict mount %s: %w", path, err)
	}
	return nil
}

// places are the directories that are there of some, each where it really is: one that was moved to another disk, and left a
// link, is not shown there either.
func places(dirs []string) []string {
	var out []string
	for _, dir := range dirs {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			continue // Not on this machine.
		}
		if info, err := os.Stat(real); err == nil && info.IsDir() && !slices.Contains(out, real) {
			out = append(out, real)
		}
	}
	return out
}

// detach takes away what is mounted on directories and below them: not to be seen, it would be kept alive here after the machine has
// unmounted it, such as the network namespaces of workloads that are gone, and the layers of containers.
func detach(dirs []string) error {
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		path := unescape.Replace(fields[4])
		if !slices.Contains(dirs, path) && !below(path, dirs) {
			continue
		}
		// One that went with the one above it is no mount any more.
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("take away mount %s: %w", path, err)
		}
	}
	return nil
}

// unescape gives a path as it was before the kernel wrote it into a line (proc(5), mountinfo).
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// hide covers what is hidden and not below what was rebuilt: directories by empty ones, and files by nothing. It returns the directories,
// which can still be written to.
func hide(h hidden, rebuilt []string) ([]string, error) {
	var covered []string
	dirs := slices.DeleteFunc(slices.Clone(h.dirs), func(dir string) bool { return below(dir, rebuilt) })
	// What is below a directory comes after it.
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
			continue // Not on this machine, another one's name, or what is above it is hidden already.
		}
		if err := unix.Mount("none", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=64k,nr_inodes=64,mode=0755"); err != nil {
			return nil, fmt.Errorf("hide %s: %w", dir, err)
		}
		covered = append(covered, dir)
	}
	return covered, mask(slices.DeleteFunc(slices.Clone(h.files), func(file string) bool { return below(file, rebuilt) }))
}

// mask covers what is there of the paths: files by /dev/null, directories by empty ones.
func mask(paths []string) error {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			// Not on this machine.
			continue
		}
		if info.IsDir() {
			err = unix.Mount("none", path, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=0,nr_inodes=1,mode=0555")
		} else {
			err = unix.Mount("/dev/null", path, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("mask %s: %w", path, err)
		}
	}
	return nil
}

// private makes the directories that a process may write to.
func private() error {
	options := "mode=1777,size=" + strconv.Itoa(TmpBytes) + ",nr_inodes=" + strconv.Itoa(TmpFiles)
	if err := unix.Mount("none", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("make /tmp: %w", err)
	}
	if _, err := os.Stat("/var/tmp"); err == nil {
		if err := unix.Mount("/tmp", "/var/tmp", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("make /var/tmp: %w", err)
		}
	}
	return nil
}

// devices makes /dev.
func devices() error {
	if err := unix.Mount("none", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=64k,nr_inodes=64"); err != nil {
		return fmt.Errorf("make /dev: %w", err)
	}
	before := unix.Umask(0)
	defer unix.Umask(before)
	for name, number := range map[string]uint64{
		"null": unix.Mkdev(1, 3), "zero": unix.Mkdev(1, 5), "full": unix.Mkdev(1, 7), "random": unix.Mkdev(1, 8), "urandom": unix.Mkdev(1, 9), "tty": unix.Mkdev(5, 0),
	} {
		if err := unix.Mknod("/dev/"+name, unix.S_IFCHR|0o666, int(number)); err != nil {
			return fmt.Errorf("make /dev/%s: %w", name, err)
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"} {
		if err := os.Symlink(target, "/dev/"+name); err != nil {
			return fmt.Errorf("make /dev/%s: %w", name, err)
		}
	}
	for _, m := range []struct{ dir, kind, options string }{
		{"/dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=0620"}, {"/dev/shm", "tmpfs", "mode=1777,size=" + strconv.Itoa(ShmBytes)},
	} {
		if err := os.Mkdir(m.dir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", m.dir, err)
		}
		flags := uintptr(unix.MS_NOSUID | unix.MS_NOEXEC)
		if m.kind == "tmpfs" {
			flags |= unix.MS_NODEV
		}
		if err := unix.Mount("none", m.dir, m.kind, flags, m.options); err != nil {
			return fmt.Errorf("make %s: %w", m.dir, err)
		}
	}
	return restrict(unix.AT_FDCWD, "/dev", 0, unix.MOUNT_ATTR_RDONLY)
}

// kernel makes /proc and /sys: of this namespace's processes and interfaces, and without the machine's control groups,
// tracing and file systems of other kinds that are mounted below.
func kernel() error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("proc", "/proc", "proc", flags, ""); err != nil {
		return fmt.Errorf("make /proc: %w", err)
	}
	// The kernel mounts no file system on itself, which it would be without a network namespace of the process's own.
	if err := unix.Mount("none", "/sys", "tmpfs", flags, "size=0,nr_inodes=1"); err != nil {
		return fmt.Errorf("cover /sys: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", flags|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make /sys: %w", err)
	}
	for _, path := range readOnlyProc {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("protect %s: %w", path, err)
		}
		if err := restrict(unix.AT_FDCWD, path, 0, unix.MOUNT_ATTR_RDONLY|flagsAttr); err != nil {
			return err
		}
	}
	return errors.Join(mask(maskedProc), mask(maskedSys))
}

const flagsAttr = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
