package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary stand in for `heddle launch`, and for an agent that is killed while it starts something.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "start" {
		var s starter
		err := json.Unmarshal([]byte(os.Args[2]), &s)
		if err == nil {
			err = s.run()
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == InitArgument {
		os.Exit(Init(os.Args[2:]))
	}
	if len(os.Args) == 3 && os.Args[1] == "launch" {
		if err := Launch(os.Args[2]); err != nil {
			os.Exit(127)
		}
	}
	os.Exit(m.Run())
}

func launcher(t *testing.T) []string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("starting processes as other users needs root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, "launch"}
}

func start(t *testing.T, spec Spec) (*Process, string, error) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "app.log")
	p, err := Start(spec, filepath.Join(dir, "app.json"), log, launcher(t), nil)
	return p, log, err
}

func TestStartRunsAsUserAndLogs(t *testing.T) {
	p, log, err := start(t, Spec{Command: []string{"/bin/sh", "-c", "id -u; echo $GREETING; uname -n; exit 3"}, Env: []string{"GREETING=hello", "PATH=/bin:/usr/bin"}, UID: 65534, GID: 65534, Hostname: "cart-0"})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if reason, failed := p.Exit(); reason != "exit code 3" || !failed {
		t.Fatalf("%q %v", reason, failed)
	}
	content, err := os.ReadFile(log)
	if err != nil || string(content) != "65534\nhello\ncart-0\n" {
		t.Fatalf("log %q, %v", content, err)
	}
}

func TestStartSaysWhyNot(t *testing.T) {
	_, _, err := start(t, Spec{Command: []string{"/does/not/exist"}})
	if err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Fatal(err)
	}
	_, _, err = start(t, Spec{Command: []string{"/bin/true"}, Netns: "/run/netns/heddle-no-such"})
	if err == nil || !strings.Contains(err.Error(), "network namespace") {
		t.Fatal(err)
	}
}

func TestResolvAndHide(t *testing.T) {
	dir := t.TempDir()
	resolv, secret := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "secret")
	if err := os.MkdirAll(secret, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{resolv: "nameserver 192.0.2.53\n", filepath.Join(secret, "key"): "x"} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, log, err := start(t, Spec{Command: []string{"/bin/sh", "-c", "cat /etc/resolv.conf; ls " + secret}, Env: []string{"PATH=/bin:/usr/bin"}, Resolv: resolv, Hide: []string{secret}})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	content, _ := os.ReadFile(log)
	if string(content) != "nameserver 192.0.2.53\n" {
		t.Fatalf("%q", content)
	}
}

func TestAdoptAndStop(t *testing.T) {
	// The shell opens the pipe once it ignores the signal; before that a SIGTERM would end it.
	ready := filepath.Join(t.TempDir(), "ready")
	if err := syscall.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	p, _, err := start(t, Spec{Command: []string{"/bin/sh", "-c", "trap '' TERM; : >\"$READY\"; while :; do sleep 1; done"}, Env: []string{"PATH=/bin:/usr/bin", "READY=" + ready}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(ready); err != nil {
		t.Fatal(err)
	}
	adopted := Adopt(p.Record)
	if adopted == nil {
		t.Fatal("running process not found again")
	}
	foreign := p.Record
	foreign.Ticks++
	if Adopt(foreign) != nil {
		t.Fatal("a reused process id was taken for the old process")
	}
	adopted.Stop(50 * time.Millisecond)
	<-p.Done()
	if reason, _ := p.Exit(); reason != "killed by signal SIGKILL" {
		t.Fatal(reason)
	}
	if Adopt(p.Record) != nil {
		t.Fatal("ended process adopted")
	}
}

func TestHierarchiesV1AndV2(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpu memory\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h := DetectHierarchies("30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"31 25 0:27 / " + dir + " rw - cgroup2 cgroup2 rw\nrubbish\n")
	if h.V1["cpu"] != "/sys/fs/cgroup/cpu,cpuacct" || h.V2 != dir || !h.V2Offered["memory"] {
		t.Fatalf("%+v", h)
	}
}

func TestCgroupLimitsAndRemove(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("control groups need root")
	}
	h, err := Hierarchy()
	if err != nil {
		t.Fatal(err)
	}
	group := "heddle-test-" + filepath.Base(t.TempDir()) + "/ns.app"
	dirs, unenforced, err := h.Create(group, Limits{MilliCPU: 500, Memory: 64 << 20, PIDs: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("unenforced: %v", unenforced)
	const user = 0x70001234
	cmd := exec.Command("/bin/sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			_ = cmd.Process.Kill()
			t.Fatal(err)
		}
	}
	if id := h.User(group, func(id int) bool { return id > 1000 }); id != user {
		t.Errorf("the group's process runs as %d, not %d", id, user)
	}
	if id := h.User(group, func(id int) bool { return id < 1000 }); id != 0 {
		t.Errorf("%d is nobody's", id)
	}
	if err := h.Remove(filepath.Dir(group)); err != nil {
		_ = cmd.Process.Kill()
		t.Fatal(err)
	}
	if err := <-exited; err == nil {
		t.Fatal("member of the removed group ended by itself")
	}
	if s := cmd.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() {
		t.Fatal("member of the removed group was not killed")
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			t.Fatalf("%s is left", dir)
		}
	}
}

func TestRotateLogs(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "app.log")
	for i := range LogsKept + 2 {
		if err := os.WriteFile(path, []byte(strings.Repeat(strconv.Itoa(i), 11)), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := RotateLogs(dir, 10); err != nil {
			t.Fatal(err)
		}
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != LogsKept+1 {
		t.Fatalf("%d files", len(entries))
	}
	if b, _ := os.ReadFile(path + ".1"); string(b) != "44444444444" {
		t.Fatalf("%q", b)
	}
}

// A process makes its log as long as it likes, by a call that writes nothing: copying all of it would fill the disk.
func TestRotateKeepsTheEndOfAnEndlessLog(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "app.log")
	if err := os.WriteFile(path, []byte("begins\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 64<<20); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = log.WriteString("ends\n")
	if err := errors.Join(err, log.Close(), RotateLogs(dir, 10)); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path + ".1"); err != nil || len(b) != 20 || !strings.HasSuffix(string(b), "ends\n") {
		t.Errorf("%d bytes were kept: %v", len(b), err)
	}
}
