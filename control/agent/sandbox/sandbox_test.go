package sandbox

import (
	"slices"
	"testing"

	seccomp "github.com/elastic/go-seccomp-bpf"

	"heddle.io/heddle/api/v1alpha1"
)

// What the form of a workload allows is what can be given.
func TestCapabilitiesOfWorkloads(t *testing.T) {
	if got := Grantable(); !slices.Equal(got, v1alpha1.Capabilities) {
		t.Errorf("%v\n%v", got, v1alpha1.Capabilities)
	}
}

// allows says whether the policy lets a call pass without conditions.
func allows(p *seccomp.Policy, name string) bool {
	for _, group := range p.Syscalls {
		if slices.Contains(group.Names, name) {
			return group.Action == seccomp.ActionAllow
		}
	}
	return false
}

// With every capability that can be given, the list compiles, and what leaves a sandbox stays refused.
func TestPolicy(t *testing.T) {
	sets := [][]string{nil, Grantable()}
	for _, name := range Grantable() {
		sets = append(sets, []string{name})
	}
	for _, capabilities := range sets {
		p, err := policy(capabilities)
		if err != nil {
			t.Fatalf("%v: %v", capabilities, err)
		}
		if _, err := p.Assemble(); err != nil {
			t.Errorf("%v: %v", capabilities, err)
		}
		for _, name := range []string{
			"add_key", "bpf", "clone3", "delete_module", "fanotify_init", "finit_module", "fsopen", "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup",
			"kexec_load", "keyctl", "mount", "mount_setattr", "move_mount", "open_by_handle_at", "open_tree", "perf_event_open", "pivot_root", "quotactl", "reboot",
			"request_key", "setns", "swapon", "umount2", "unshare", "userfaultfd",
		} {
			if allows(p, name) {
				t.Errorf("%v: %s is allowed", capabilities, name)
			}
		}
		for _, name := range []string{"accept4", "epoll_pwait2", "execve", "futex", "mmap", "openat", "read", "sendmsg", "splice"} {
			if !allows(p, name) {
				t.Errorf("%v: %s is refused", capabilities, name)
			}
		}
	}
}
