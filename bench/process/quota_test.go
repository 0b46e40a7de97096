package process

import (
	"errors"
	"os"
	"testing"
	"time"
)

func TestTheCPUControllerIsFoundInEitherVersion(t *testing.T) {
	const v1 = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\ncgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\ncgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
	const v2 = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n"
	for _, test := range []struct {
		mounts, controllers, root string
		v2                        bool
	}{
		{v1, "", "/sys/fs/cgroup/cpu,cpuacct", false},
		{v2, "cpuset cpu io memory\n", "/sys/fs/cgroup", true},
		{v2, "cpuset io\n", "", false},
		{"", "", "", false},
	} {
		root, v2, err := cpuController(test.mounts, func(string) (string, error) { return test.controllers, nil })
		if root != test.root || v2 != test.v2 || (err == nil) != (root != "") {
			t.Errorf("%q with %q: %q, version 2 %t, %v", test.mounts, test.controllers, root, v2, err)
		}
	}
	broken := errors.New("broken")
	if _, _, err := cpuController(v2, func(string) (string, error) { return "", broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestAQuotaLimitsAProgram(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("control groups are made by root")
	}
	quota, err := NewQuota(20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := quota.Remove(); err != nil {
			t.Error(err)
		}
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	begun := time.Now()
	p, err := Start("a loop", Place{Quota: quota}, "sh", "-c", "while :; do :; done")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	const enough = 200 * time.Millisecond
	for {
		cost, err := p.Cost()
		if err != nil {
			t.Fatal(err)
		}
		if cost.User+cost.System < enough {
			<-tick.C
			continue
		}
		// A fifth of a processor: a second. On a busy machine it takes longer, never less, but for what one period may exceed.
		if took := time.Since(begun); took < 700*time.Millisecond {
			t.Errorf("%v of a processor took %v", cost.User+cost.System, took)
		}
		return
	}
}
