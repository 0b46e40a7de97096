//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// targets are what an attacker wants. It knows all numbers and paths: secrecy of those is no defence.
type targets struct {
	// Application and Proxy are processes of another workload, Gateway the ingress's, by the machine's numbers.
	Application, Proxy, Gateway, Agent, Controller int
	// Sockets of the agent for the other workload's proxy and for the attacker's.
	Socket, OwnSocket string
	// Run and Data are the cluster's directories, Launch the file with the other one's environment.
	Run, Data, Launch, Log string
	// Keys is the file with the keys of Secrets, which an option names.
	Keys string
	// Admin is the other one's admin interface, at its address.
	Admin string
	// User is the other application's, Secret a file in the machine's /tmp, Shared the key of shared memory.
	User, Shared int
	Secret       string
	// Later is a directory that the machine mounts a file system in, when the attacker waits for it.
	Later string
	// Marker is in the other one's environment.
	Marker string
}

// attempt is one thing that an attacker tries. nil is its success.
type attempt struct {
	name string
	try  func(targets) error
	// control says that it succeeds for root outside of a sandbox.
	control bool
}

// verdict is what came of one.
type verdict struct{ Name, Refusal string }

const attackEnvironment = "HEDDLE_E2E_ATTACK"

// What is in the directory where an attacker waits for a mount: where it is made, and a pipe that ends when it is.
const (
	mountedBelow = "/mount"
	mountedEnd   = "/mounted"
)

// attack makes every attempt and prints what came of it, a line each.
func attack() {
	var at targets
	if err := json.Unmarshal([]byte(os.Getenv(attackEnvironment)), &at); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, a := range attempts {
		if os.Getenv(attackEnvironment+"_CONTROL") != "" && !a.control {
			continue
		}
		v := verdict{Name: a.name}
		if err := a.try(at); err != nil {
			v.Refusal = err.Error()
		}
		line, err := json.Marshal(v)
		if err != nil {
			os.Exit(1)
		}
		fmt.Println("verdict " + string(line))
	}
	fmt.Println("done")
}

var errNothing = errors.New("nothing there")

// reads says whether a file can be read and has something in it.
func reads(path func(targets) string) func(targets) error {
	return func(at targets) error {
		content, err := os.ReadFile(path(at))
		if err == nil && len(content) == 0 {
			return errNothing
		}
		return err
	}
}

// lists says whether a directory can be listed and has something in it, but the way to what is the attacker's.
func lists(path func(targets) string, own ...string) func(targets) error {
	return func(at targets) error {
		entries, err := os.ReadDir(path(at))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !slices.Contains(own, e.Name()) {
				return nil
			}
		}
		return errNothing
	}
}

func opens(path string, flags int) func(targets) error {
	return func(targets) error {
		fd, err := unix.Open(path, flags, 0o600)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
}

// makes creates a file or directory and removes it.
func makes(path string) func(targets) error {
	return func(targets) error {
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		return os.Remove(path)
	}
}

func connects(path func(targets) string) func(targets) error {
	return func(at targets) error {
		c, err := net.Dial("unix", path(at))
		if err == nil {
			c.Close()
		}
		return err
	}
}

// proc is a file of a process.
func proc(pid func(targets) int, file string) func(targets) string {
	return func(at targets) string { return fmt.Sprintf("/proc/%d/%s", pid(at), file) }
}

func application(at targets) int { return at.Application }
func proxy(at targets) int       { return at.Proxy }
func gatewayOf(at targets) int   { return at.Gateway }
func agentOf(at targets) int     { return at.Agent }

func signals(pid func(targets) int) func(targets) error {
	return func(at targets) error { return unix.Kill(pid(at), 0) }
}

func calls(number uintptr, a ...uintptr) func(targets) error {
	return func(targets) error {
		var args [6]uintptr
		copy(args[:], a)
		got, _, errno := syscall.Syscall6(number, args[0], args[1], args[2], args[3], args[4], args[5])
		if errno != 0 {
			return errno
		}
		if number != unix.SYS_KEYCTL && number != unix.SYS_SHMGET && number != unix.SYS_ACCT {
			unix.Close(int(got))
		}
		return nil
	}
}

func socket(family, kind, protocol int) func(targets) error {
	return func(targets) error {
		fd, err := unix.Socket(family, kind, protocol)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
}

// apart runs something that changes the calling thread on one that is thrown away.
func apart(f func(targets) error) func(targets) error {
	return func(at targets) error { return inThread(func() error { return f(at) }) }
}

func enters(pid func(targets) int, kind string) func(targets) error {
	return apart(func(at targets) error {
		fd, err := unix.Open(proc(pid, "ns/"+kind)(at), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if kind == "mnt" {
			// The kernel asks for it; where it is refused, so is what follows.
			_ = unix.Unshare(unix.CLONE_FS)
		}
		return unix.Setns(fd, 0)
	})
}

func unshares(flags int) func(targets) error {
	return apart(func(targets) error { return unix.Unshare(flags) })
}

func memory(pid func(targets) int) func(targets) error {
	return func(at targets) error {
		address, err := stackOf(pid(at))
		if err != nil {
			return err
		}
		f, err := os.Open(proc(pid, "mem")(at))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.ReadAt(make([]byte, 64), int64(address))
		return err
	}
}

// stackOf is an address that a process has something at.
func stackOf(pid int) (uint64, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if strings.Contains(line, "[stack]") {
			_, err := fmt.Sscanf(line, "%x-%x", &from, &to)
			return to - 64, err
		}
	}
	return 0, errNothing
}

var attempts = []attempt{
	{"see another's command line", reads(proc(application, "cmdline")), true},
	{"read another's environment", func(at targets) error {
		content, err := os.ReadFile(proc(application, "environ")(at))
		if err == nil && !bytes.Contains(content, []byte(at.Marker)) {
			return errNothing
		}
		return err
	}, true},
	{"read another's memory", memory(application), true},
	{"read another's map of memory", reads(proc(application, "maps")), true},
	{"list another's files", lists(proc(application, "fd")), true},
	{"list another's root", lists(proc(application, "root")), true},
	{"read another proxy's environment", reads(proc(proxy, "environ")), true},
	{"read another proxy's memory, with its key", memory(proxy), true},
	{"read another proxy's map of memory", reads(proc(proxy, "maps")), true},
	{"read a gateway's memory, with its key", memory(gatewayOf), true},
	{"list a gateway's files", lists(proc(gatewayOf, "fd")), true},
	{"read the agent's memory", memory(agentOf), true},
	{"read another's memory by process_vm_readv", func(at targets) error {
		address, err := stackOf(at.Application)
		if err != nil {
			address = 1 << 20
		}
		into := make([]byte, 8)
		_, err = unix.ProcessVMReadv(at.Application, []unix.Iovec{{Base: &into[0], Len: 8}}, []unix.RemoteIovec{{Base: uintptr(address), Len: 8}}, 0)
		return err
	}, true},
	{"trace another", apart(func(at targets) error {
		// Seized, not stopped; let go with the thread.
		_, _, errno := syscall.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(at.Application), 0, 0, 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	}), true},
	{"hold another by a descriptor", func(at targets) error {
		fd, err := unix.PidfdOpen(at.Application, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}, true},
	{"signal another", signals(application), true},
	{"signal another proxy", signals(proxy), true},
	{"signal a gateway", signals(gatewayOf), true},
	{"signal the agent", signals(agentOf), true},
	{"signal the controller", func(at targets) error { return unix.Kill(at.Controller, 0) }, true},
	{"change another's limits", func(at targets) error {
		var limit unix.Rlimit
		return unix.Prlimit(at.Application, unix.RLIMIT_NOFILE, nil, &limit)
	}, false},
	{"look up another's priority", func(at targets) error { _, err := unix.Getpriority(unix.PRIO_PROCESS, at.Application); return err }, true},
	{"see any process but the own", func(at targets) error {
		entries, err := filepath.Glob("/proc/[0-9]*/exe")
		if err != nil {
			return err
		}
		for _, e := range entries {
			if link, err := os.Readlink(e); err == nil && strings.Contains(link, "heddle-proxy") {
				return nil
			}
		}
		return errNothing
	}, true},
	{"find shared memory of the machine", func(at targets) error { return calls(unix.SYS_SHMGET, uintptr(at.Shared), 0, 0)(at) }, true},

	{"connect to another's socket of the agent", connects(func(at targets) string { return at.Socket }), true},
	{"connect to the own proxy's socket of the agent", connects(func(at targets) string { return at.OwnSocket }), false},
	{"be another workload by the own proxy's socket", impersonate, false},
	{"connect to the API", connects(func(at targets) string { return at.Run + "/api.sock" }), true},
	{"connect to the controller's xDS", connects(func(at targets) string { return at.Run + "/xds.sock" }), true},
	{"connect to the agent", connects(func(at targets) string { return at.Run + "/agent.sock" }), true},
	{"ask another's admin interface", func(at targets) error {
		client := &http.Client{Timeout: 3 * time.Second}
		response, err := client.Get(at.Admin + "/config_dump")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	}, false},

	{"list the cluster's runtime directory", lists(func(at targets) string { return at.Run }, "workloads"), true},
	{"list the others' directories", lists(func(at targets) string { return at.Run + "/workloads/attacked" }, "attacker-0"), true},
	{"list the cluster's data", lists(func(at targets) string { return at.Data }), true},
	{"list the keys of the authority", lists(func(at targets) string { return at.Data + "/ca" }), true},
	{"list the store", lists(func(at targets) string { return at.Data + "/store" }), false},
	{"read who has which address", reads(func(at targets) string { return at.Data + "/addresses.db" }), true},
	{"read the keys of Secrets", reads(func(at targets) string { return at.Keys }), true},
	{"read another's start, with its environment", reads(func(at targets) string { return at.Launch }), true},
	{"read another's log", reads(func(at targets) string { return at.Log }), true},
	{"read the machine's passwords", reads(func(targets) string { return "/etc/shadow" }), true},
	{"list the machine's logs", lists(func(targets) string { return "/var/log" }), true},
	{"list old copies of the machine's passwords", lists(func(targets) string { return "/var/backups" }), false},
	{"list root's home", lists(func(targets) string { return "/root" }), true},
	{"list the machine's runtime directory", lists(func(targets) string { return "/run" }, "heddle"), true},
	{"read a file in the machine's /tmp", reads(func(at targets) string { return at.Secret }), true},
	{"read it below the first process's root", reads(func(at targets) string { return "/proc/1/root" + at.Secret }), false},
	{"read the machine's memory", opens("/proc/kcore", unix.O_RDONLY), false},
	{"read the kernel's log", func(targets) error { _, err := unix.Klogctl(10, nil); return err }, true},
	{"open the kernel's log", opens("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK), true},

	{"enter another's network", enters(application, "net"), true},
	{"enter another's mounts", enters(application, "mnt"), true},
	{"enter the agent's network", enters(agentOf, "net"), true},
	{"enter the first process's host name", enters(func(targets) int { return 1 }, "uts"), false},
	{"make a user namespace", func(targets) error {
		cmd := exec.Command("/bin/true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
		return cmd.Run()
	}, true},
	{"part from the own user namespace", unshares(unix.CLONE_NEWUSER), false},
	{"make a mount namespace", unshares(unix.CLONE_NEWNS | unix.CLONE_FS), true},
	{"make a network namespace", unshares(unix.CLONE_NEWNET), true},
	{"change the root", apart(func(targets) error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		return unix.Chroot("/")
	}), true},
	{"pivot the root", func(targets) error { return unix.PivotRoot("/tmp", "/tmp") }, false},
	{"mount a file system", func(targets) error {
		if err := unix.Mount("none", "/mnt", "tmpfs", 0, ""); err != nil {
			return err
		}
		return unix.Unmount("/mnt", 0)
	}, true},
	{"mount with the new calls", func(targets) error {
		fd, err := unix.Fsopen("tmpfs", 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}, true},
	{"make the root writable", func(targets) error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") }, true},
	{"uncover what is hidden", func(targets) error { return unix.Unmount("/run", unix.MNT_DETACH) }, false},
	{"open a file by its number", func(targets) error {
		handle, mount, err := unix.NameToHandleAt(unix.AT_FDCWD, "/", 0)
		if err != nil {
			return err
		}
		_ = mount
		root, err := unix.Open("/", unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(root)
		fd, err := unix.OpenByHandleAt(root, handle, unix.O_RDONLY)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}, true},

	{"make a device of a disk", func(targets) error {
		if err := unix.Mknod("/tmp/disk", unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0))); err != nil {
			return err
		}
		return os.Remove("/tmp/disk")
	}, true},
	{"open the machine's memory as a device", opens("/dev/mem", unix.O_RDONLY), false},
	{"open a disk", func(at targets) error {
		disks, err := filepath.Glob("/sys/block/*/dev")
		if err != nil || len(disks) == 0 {
			return errNothing
		}
		for _, d := range disks {
			if err := opens("/dev/"+filepath.Base(filepath.Dir(d)), unix.O_RDONLY)(at); err == nil {
				return nil
			}
		}
		return errNothing
	}, true},
	{"change a setting of the kernel", opens("/proc/sys/kernel/core_pattern", unix.O_WRONLY), true},
	{"change a setting of the network", func(targets) error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0) }, true},
	{"press a magic key", opens("/proc/sysrq-trigger", unix.O_WRONLY), false},
	{"make a control group", func(at targets) error {
		found, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
		if err != nil || len(found) == 0 {
			return makes("/sys/fs/cgroup/heddle-attack")(at)
		}
		return makes(filepath.Join(filepath.Dir(found[0]), "heddle-attack"))(at)
	}, true},
	{"leave the control group", func(targets) error {
		found, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
		found = append(found, "/sys/fs/cgroup/cgroup.procs")
		for _, path := range found {
			err = os.WriteFile(path, []byte("0"), 0)
			if err == nil {
				return nil
			}
		}
		return err
	}, true},
	{"change the host name", func(targets) error { return unix.Sethostname([]byte("attacked")) }, true},
	{"set the clock", func(targets) error {
		return unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Sec: 1})
	}, false},
	{"stop accounting", calls(unix.SYS_ACCT, 0), false},
	{"load a program into the kernel", func(targets) error {
		// An array of one entry: the least that needs bpf(2).
		attributes := struct{ kind, key, value, entries, flags uint32 }{2, 4, 4, 1, 0}
		return calls(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attributes)), unsafe.Sizeof(attributes))(targets{})
	}, true},
	{"load a module", calls(unix.SYS_INIT_MODULE, 0, 0, 0), false},
	{"load another kernel", calls(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0), false},
	{"use io_uring", func(targets) error {
		var parameters [120]byte
		return calls(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&parameters)))(targets{})
	}, true},
	{"handle page faults of the kernel", calls(unix.SYS_USERFAULTFD, 0), true},
	{"use the kernel's keys", calls(unix.SYS_KEYCTL, 0, ^uintptr(2), 1), true},
	{"count the machine's events", func(targets) error {
		fd, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Config: unix.PERF_COUNT_SW_CPU_CLOCK}, -1, 0, -1, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}, true},
	{"watch the machine's files", calls(unix.SYS_FANOTIFY_INIT, 0, 0), true},

	{"send raw packets", socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP), true},
	{"listen to packets", socket(unix.AF_PACKET, unix.SOCK_RAW, 0), true},
	{"use the kernel's ciphers", socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0), false},
	{"switch the interfaces", func(targets) error {
		link, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}, true},
	{"take the capture of traffic away", func(targets) error {
		out, err := exec.Command("nft", "add", "table", "inet", "attack").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}, true},

	{"become another's user", apart(func(at targets) error {
		_, _, errno := syscall.Syscall(unix.SYS_SETRESUID, uintptr(at.User), uintptr(at.User), uintptr(at.User))
		if errno != 0 {
			return errno
		}
		return nil
	}), true},
	{"write to the machine's programs", makes("/usr/bin/heddle-attack"), true},
	{"write to the machine's settings", makes("/etc/heddle-attack"), true},
	{"write to the root", makes("/heddle-attack"), true},
	{"write to what is mounted while it runs", func(at targets) error {
		if _, err := os.ReadFile(at.Later + mountedEnd); err != nil {
			return err
		}
		return makes(at.Later + mountedBelow + "/planted")(at)
	}, false},
	{"overwrite the launcher", func(at targets) error {
		err := opens("/proc/1/exe", unix.O_WRONLY)(at)
		if !errors.Is(err, unix.ETXTBSY) {
			return err
		}
		// It runs. Once it does not, the file system must refuse.
		var fs unix.Statfs_t
		if err := unix.Statfs("/proc/1/exe", &fs); err != nil {
			return err
		}
		if fs.Flags&unix.ST_RDONLY == 0 {
			return nil
		}
		return unix.EROFS
	}, false},
	{"gain privileges by a program that gives them", func(targets) error {
		status, err := os.ReadFile("/proc/self/status")
		if err == nil && bytes.Contains(status, []byte("NoNewPrivs:\t1")) {
			return errors.New("no new privileges")
		}
		return err
	}, true},

	{"fill /tmp", func(targets) error {
		f, err := os.Create("/tmp/full")
		if err != nil {
			return err
		}
		defer os.Remove("/tmp/full")
		defer f.Close()
		block := make([]byte, 1<<20)
		for range 512 {
			if _, err := f.Write(block); err != nil {
				return err
			}
		}
		return nil
	}, false},
	{"start processes without end", func(targets) error {
		var started []int
		defer func() {
			for _, pid := range started {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			for _, pid := range started {
				_, _ = unix.Wait4(pid, nil, 0, nil)
			}
		}()
		for range 6000 {
			pid, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "100"}, &syscall.ProcAttr{})
			if err != nil {
				return err
			}
			started = append(started, pid)
		}
		return nil
	}, false},
}
