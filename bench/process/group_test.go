package process

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestThreadsOfAGroupArePinned(t *testing.T) {
	var had unix.CPUSet
	if err := unix.SchedGetaffinity(0, &had); err != nil {
		t.Fatal(err)
	}
	last := -1
	for cpu := range 1024 {
		if had.IsSet(cpu) {
			last = cpu
		}
	}
	sleeper := exec.Command("sleep", "60")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait()
	})
	group := Group{sleeper.Process.Pid}
	if err := group.Pin(last); err != nil {
		t.Fatal(err)
	}
	var has unix.CPUSet
	if err := unix.SchedGetaffinity(sleeper.Process.Pid, &has); err != nil {
		t.Fatal(err)
	}
	if has.Count() != 1 || !has.IsSet(last) {
		t.Errorf("%d processors, want number %d alone", has.Count(), last)
	}
}

func TestProcessorTimeOfAGroup(t *testing.T) {
	alone, err := OnCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	twice, err := Group{os.Getpid(), os.Getpid()}.OnCPU()
	if err != nil || twice < 2*alone {
		t.Errorf("%v %v, want twice %v at the least", twice, err, alone)
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := (Group{ended.Process.Pid}).OnCPU(); err == nil {
		t.Error("no error of a process that has ended")
	}
}

func TestMembersOfAControlGroup(t *testing.T) {
	directory := t.TempDir()
	for content, want := range map[string]int{"12\n345\n": 2, "": 0, "x\n": 0} {
		if err := os.WriteFile(directory+"/cgroup.procs", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		group, err := Members(directory)
		if len(group) != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v %v", content, group, err)
		}
	}
}
