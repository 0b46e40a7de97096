package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"heddle.io/heddle/control/cluster"
)

// confined runs a shell script in a sandbox and returns what it printed.
func confined(t *testing.T, uid int, sandbox Sandbox, script string, hide ...string) string {
	t.Helper()
	dir := t.TempDir()
	resolv := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 192.0.2.53\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p, log, err := start(t, Spec{
		Command: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin:/usr/bin:/sbin:/usr/sbin"}, UID: uid, GID: uid, Hostname: "cart-0",
		Resolv: resolv, Hide: append(hide, dir), Sandbox: &sandbox,
	})
	if err != nil {
		t.Fatal(err)
	}
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	select {
	case <-p.Done():
	case <-limit.C:
		p.Stop(0)
		t.Fatal("it did not end")
	}
	content, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(content))
}

const someone = 1879048192 + 77

func TestSandboxShowsItsOwn(t *testing.T) {
	for script, want := range map[string]string{
		"id -u; id -G; uname -n":                          "1879048269\n1879048269\ncart-0",
		"cat /etc/resolv.conf":                            "nameserver 192.0.2.53",
		"grep -E '^(Cap|NoNew|Seccomp:)' /proc/$$/status": "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2",
		"ls /dev": "fd\nfull\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero",
		"set -- /proc/[0-9]*; echo $#; tr '\\0' ' ' </proc/1/cmdline | cut -d' ' -f2,3": "2\ninit /bin/sh",
		"ls /tmp /var/tmp /run /root /dev/shm /sys/fs/cgroup":                           "/dev/shm:\n\n/root:\n\n/run:\n\n/sys/fs/cgroup:\n\n/tmp:\n\n/var/tmp:",
		"echo x >/tmp/f && echo y >/dev/null && echo z >/dev/shm/f && cat /var/tmp/f":   "x",
		// A grandchild that nobody waits for.
		"(sh -c 'sleep 0.01 & echo $! >/tmp/pid' &); while ! [ -s /tmp/pid ] || [ -e /proc/$(cat /tmp/pid) ]; do sleep 0.01; done; echo reaped": "reaped",
	} {
		if got := confined(t, someone, Sandbox{}, script); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", script, got, want)
		}
	}
}

// A directory that is hidden was moved to another disk, and a link is where it was: neither way leads to it.
func TestSandboxHidesWhatALinkLeadsTo(t *testing.T) {
	root, err := os.MkdirTemp("/var/lib", "heddle-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	moved, link := filepath.Join(root, "moved"), filepath.Join(root, "link")
	if err := errors.Join(os.Chmod(root, 0o755), os.Mkdir(moved, 0o755), os.WriteFile(filepath.Join(moved, "secret"), []byte("planted"), 0o644), os.Symlink(moved, link)); err != nil {
		t.Fatal(err)
	}
	below, err := os.MkdirTemp("/var/log", "heddle-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(below) })
	script := fmt.Sprintf("cat %s/secret %s/secret 2>/dev/null; ls -A %[1]s /var/log; echo done", link, moved)
	for _, uid := range []int{0, someone} {
		if got := confined(t, uid, Sandbox{}, script); !strings.Contains(got, "planted") {
			t.Fatalf("user %d, not hidden: %s", uid, got)
		}
		// One of them is below what is hidden anyway.
		if got := confined(t, uid, Sandbox{}, script, link, below); got != link+":\n\n/var/log:\ndone" {
			t.Errorf("user %d: %s", uid, got)
		}
	}
}

// Of directories one of which is in another the outer one hides both, whichever is named first.
func TestSandboxHidesNestedDirectories(t *testing.T) {
	root, err := os.MkdirTemp("/opt", "heddle-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	outer, beside, inner := filepath.Join(root, "a"), filepath.Join(root, "a-b"), filepath.Join(root, "a", "c")
	for _, dir := range []string{outer, beside, inner} {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "secret"), []byte("planted"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	script := fmt.Sprintf("cat %s/secret %s/secret %s/secret 2>/dev/null; echo done", outer, beside, inner)
	for _, hide := range [][]string{{inner, beside, outer}, {outer, inner, beside}, {beside, inner, outer}} {
		if got := confined(t, 0, Sandbox{}, script, hide...); got != "done" {
			t.Errorf("%v: %s", hide, got)
		}
	}
}

// Files with secrets that options name are not there, neither by the name that they have there nor by another: also to root.
func TestSandboxHidesWhatOptionsName(t *testing.T) {
	root, err := os.MkdirTemp("/opt", "heddle-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	keys, moved, etcd := filepath.Join(root, "keys", "secrets.key"), filepath.Join(root, "moved", "secrets.key"), filepath.Join(root, "etcd", "client.key")
	for _, path := range []string{keys, moved, etcd} {
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(moved, []byte("planted"), 0o600), os.Symlink(moved, keys), os.WriteFile(etcd, []byte("planted"), 0o600)); err != nil {
		t.Fatal(err)
	}
	hidden := cluster.Cluster{Name: "c", RunRoot: "/run/heddle", DataRoot: "/var/lib/heddle"}.Hidden(
		cluster.Options{SecretsKeyFile: keys, Etcd: cluster.Etcd{Key: etcd}}, "/usr/bin").Dirs
	script := fmt.Sprintf("cat %s %s %s 2>/dev/null; echo done", keys, moved, etcd)
	if got := confined(t, 0, Sandbox{}, script, hidden[:2]...); got != "plantedplantedplanteddone" {
		t.Fatalf("the cluster's own places alone: %s", got)
	}
	if got := confined(t, 0, Sandbox{}, script, hidden...); got != "done" {
		t.Errorf("root read: %s", got)
	}
}

func TestSandboxCapabilities(t *testing.T) {
	const script = "grep -E '^Cap(Eff|Bnd|Amb)' /proc/self/status | cut -f2 | sort -u"
	for _, uid := range []int{0, someone} {
		if got := confined(t, uid, Sandbox{Capabilities: []string{"NET_BIND_SERVICE", "CHOWN"}}, script); got != "0000000000000401" {
			t.Errorf("user %d: %s", uid, got)
		}
	}
	_, _, err := start(t, Spec{Command: []string{"/bin/true"}, Sandbox: &Sandbox{Capabilities: []string{"SYS_ADMIN"}}})
	if err == nil || !strings.Contains(err.Error(), `"SYS_ADMIN" cannot be given`) {
		t.Error(err)
	}
}

// A program below a directory that is hidden is there all the same, and nothing else of it.
func TestSandboxShowsTheProgram(t *testing.T) {
	dir := t.TempDir()
	content, err := os.ReadFile("/bin/ls")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "list")
	for _, path := range []string{program, filepath.Join(dir, "other")} {
		if err := os.WriteFile(path, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(hide ...string) (string, error) {
		p, log, err := start(t, Spec{Command: []string{program, dir}, UID: someone, GID: someone, Hide: hide, Sandbox: &Sandbox{}})
		if err != nil {
			return "", err
		}
		<-p.Done()
		out, err := os.ReadFile(log)
		return string(out), err
	}
	if out, err := run(); err != nil || out != "list\n" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := run(dir); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a program in a directory that is the cluster's: %v", err)
	}
}

// The first process of the sandbox passes signals on, once, and tells what the program's end was.
func TestSandboxEnds(t *testing.T) {
	for _, c := range []struct {
		script string
		signal syscall.Signal
		want   string
	}{
		{"exit 7", 0, "exit code 7"},
		{"kill -ABRT $$", 0, "killed by signal SIGABRT"},
		{"echo up; exec sleep 1000", syscall.SIGTERM, "killed by signal SIGTERM"},
		{"trap 'echo got; exit 4' TERM; echo up; while :; do sleep 0.01; done", syscall.SIGTERM, "exit code 4"},
		{"echo up; exec sleep 1000", syscall.SIGKILL, "killed by signal SIGKILL"},
	} {
		p, log, err := start(t, Spec{Command: []string{"/bin/sh", "-c", c.script}, Env: []string{"PATH=/bin:/usr/bin"}, UID: someone, GID: someone, Sandbox: &Sandbox{}})
		if err != nil {
			t.Fatal(err)
		}
		if c.signal != 0 {
			settle(t, "the program's beginning", func() bool { content, err := os.ReadFile(log); return err == nil && len(content) > 0 })
			p.Signal(c.signal)
		}
		<-p.Done()
		if reason, failed := p.Exit(); reason != c.want || !failed {
			t.Errorf("%s: %q", c.script, reason)
		}
		if content, err := os.ReadFile(log); err != nil || strings.Count(string(content), "got") > 1 {
			t.Errorf("%s: %q, %v", c.script, content, err)
		}
	}
}

func TestSandboxSaysWhyNot(t *testing.T) {
	_, _, err := start(t, Spec{Command: []string{"/does/not/exist"}, UID: someone, GID: someone, Sandbox: &Sandbox{}})
	if err == nil || !strings.Contains(err.Error(), "start /does/not/exist: no such file") {
		t.Error(err)
	}
}

// What a start costs, until the program runs: without a sandbox and in one.
func BenchmarkStart(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("starting processes as other users needs root")
	}
	launcher := []string{filepath.Join(os.Getenv("HEDDLE_E2E_BIN"), Launcher)}
	if _, err := os.Stat(launcher[0]); err != nil {
		b.Skip("HEDDLE_E2E_BIN names no directory with " + Launcher)
	}
	for name, sandbox := range map[string]*Sandbox{"plain": nil, "sandbox": {}} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			for b.Loop() {
				p, err := Start(Spec{Command: []string{"/bin/true"}, Hostname: "cart-0", UID: someone, GID: someone, Hide: []string{dir}, Sandbox: sandbox},
					filepath.Join(dir, "app.json"), filepath.Join(dir, "app.log"), launcher, nil)
				if err != nil {
					b.Fatal(err)
				}
				<-p.Done()
			}
		})
	}
}
