package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// grantable are the capabilities that leave a process in its namespaces. The others (SYS_ADMIN, SYS_MODULE, SYS_RAWIO,
// DAC_READ_SEARCH, MKNOD, BPF, SYS_PTRACE, …) give the machine: who needs one runs without a sandbox. Some of these reach
// what namespaces have in common: NET_RAW and NET_ADMIN take others' addresses on the bridge, SETUID, SETGID and DAC_OVERRIDE read others'
// private files where they are shown.
var grantable = map[string]int{
	"AUDIT_WRITE": unix.CAP_AUDIT_WRITE, "CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "FOWNER": unix.CAP_FOWNER,
	"FSETID": unix.CAP_FSETID, "IPC_LOCK": unix.CAP_IPC_LOCK, "KILL": unix.CAP_KILL, "NET_ADMIN": unix.CAP_NET_ADMIN,
	"NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "NET_RAW": unix.CAP_NET_RAW, "SETGID": unix.CAP_SETGID, "SETUID": unix.CAP_SETUID,
	"SYS_CHROOT": unix.CAP_SYS_CHROOT, "SYS_NICE": unix.CAP_SYS_NICE, "SYS_RESOURCE": unix.CAP_SYS_RESOURCE,
}

// Grantable lists the capabilities that a process may be given, without CAP_, sorted.
func Grantable() []string { return slices.Sorted(maps.Keys(grantable)) }

// Become changes the calling thread's user and group to one without supplementary groups, and leaves it no capability, now
// or later, but those named. It cannot gain privileges any more.
func Become(uid, gid int, capabilities []string) error {
	var keep [2]uint32
	wanted := map[int]bool{}
	for _, name := range capabilities {
		number, ok := grantable[name]
		if !ok {
			return fmt.Errorf("capability %q cannot be given; these can: %v", name, Grantable())
		}
		wanted[number] = true
		keep[number/32] |= 1 << (number % 32)
	}
	for number := 0; ; number++ {
		held, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(number), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			// Past the last one that the kernel knows.
			break
		}
		if err != nil {
			return fmt.Errorf("read capability %d: %w", number, err)
		}
		if held == 1 && !wanted[number] {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(number), 0, 0, 0); err != nil {
				return fmt.Errorf("drop capability %d: %w", number, err)
			}
		}
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	if err := unix.Setgroups(nil); err != nil {
		return fmt.Errorf("drop groups: %w", err)
	}
	if err := unix.Setresgid(gid, gid, gid); err != nil {
		return fmt.Errorf("become group %d: %w", gid, err)
	}
	if err := unix.Setresuid(uid, uid, uid); err != nil {
		return fmt.Errorf("become user %d: %w", uid, err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for i := range data {
		data[i] = unix.CapUserData{Effective: keep[i], Permitted: keep[i], Inheritable: keep[i]}
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	for number := range wanted {
		// Without it, a program of another user than root would lose them.
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(number), 0, 0); err != nil {
			return fmt.Errorf("hand down capability %d: %w", number, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	return nil
}
