package sandbox

import (
	"errors"
	"os"
	"testing"
)

// What the machine mounts while a process runs does not come to the process: it would be as it is there, to be written to.
func TestWhatIsMountedLaterIsNotThere(t *testing.T) { onMachine(t, "mounts later") }

func mountsLater(m *machine) error {
	err := errors.Join(os.MkdirAll("/mnt/later", 0o755), os.MkdirAll("/var/lib/service/later", 0o755), m.mount("/mnt/before"))
	if err != nil {
		return err
	}
	if err := m.confine(Config{Program: "/bin/sh"}); err != nil {
		return err
	}
	for _, dir := range []string{"/mnt/later", "/mnt/before", "/var/lib/service/later"} {
		if err := m.mount(dir); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/mnt/later", "/var/lib/service/later"} {
		m.expect("list", dir, "")
		m.expect("write", dir+"/planted", "EROFS")
		m.expect("mounts", dir, "none")
	}
	m.expect("list", "/mnt/before", "file")
	m.expect("write", "/mnt/before/file", "EROFS")
	m.expect("chmod", "/mnt/before/file", "EROFS")
	return nil
}

// What is hidden is not kept alive: the machine can unmount it, and it is gone.
func TestWhatIsHiddenIsNotHeld(t *testing.T) { onMachine(t, "hidden mounts") }

func hiddenMounts(m *machine) error {
	hidden := []string{"/run/netns/gone", "/run/with space", "/var/lib/docker/merged", "/var/log", "/run/cluster/a/b"}
	for _, dir := range append(hidden, "/run/cluster/kept", "/mnt/seen") {
		if err := m.mount(dir); err != nil {
			return err
		}
	}
	if err := m.confine(Config{Program: "/bin/sh", Hide: []string{"/run/cluster"}, Keep: []string{"/run/cluster/kept"}}); err != nil {
		return err
	}
	for _, dir := range []string{"/run/netns/gone", `/run/with\040space`, "/var/lib/docker/merged", "/run/cluster/a/b"} {
		m.expect("mounts", dir, "none")
	}
	m.expect("list", "/var/log", "")
	m.expect("list", "/run", "cluster")
	m.expect("read", "/run/cluster/kept/file", "/run/cluster/kept")
	m.expect("read", "/mnt/seen/file", "/mnt/seen")
	m.expect("write", "/run/cluster/kept/file", "EROFS")
	return nil
}

// What is hidden stays hidden when the machine puts another file or directory in its place, and when there was none before. What is seen
// beside it is seen, and the process's own resolv.conf stays its own.
func TestWhatIsReplacedStaysHidden(t *testing.T) { onMachine(t, "replaced files") }

func replacedFiles(m *machine) error {
	resolv := "/mnt/resolv.conf"
	if err := errors.Join(
		put(resolv, "nameserver 192.0.2.53"), put("/etc/resolv.conf", "nameserver machine"), put("/etc/passwd", "users"),
		put("/etc/shadow", "secret"), put("/etc/ssh/key", "secret"), put("/etc/ssl/certs/ca", "authority"), put("/etc/security/limits", "limits"),
		put("/mnt/keys/keytab", "secret"), os.Symlink("/mnt/keys/keytab", "/etc/krb5.keytab"), os.Symlink("passwd", "/etc/users"),
		put("/var/log/messages", "secret"), put("/var/lib/service/data", "data"), put("/var/lib/docker/layer", "secret"), put("/var/lib/cluster/key", "secret"),
		os.MkdirAll("/var/tmp", 0o1777), os.MkdirAll("/var/lib/cluster/shown", 0o755), os.Chmod("/var/lib/cluster", 0o711),
	); err != nil {
		return err
	}
	if err := m.confine(Config{Program: "/bin/sh", Resolv: resolv, Hide: []string{"/var/lib/cluster"}, Keep: []string{"/var/lib/cluster/shown"}}); err != nil {
		return err
	}
	seen := func() {
		m.expect("read", "/etc/passwd", "users")
		m.expect("read", "/etc/users", "users")
		m.expect("read", "/etc/resolv.conf", "nameserver 192.0.2.53")
		m.expect("read", "/var/lib/service/data", "data")
		m.expect("list", "/var/lib/cluster", "shown")
		for _, path := range []string{"/etc/shadow", "/etc/shadow-", "/etc/krb5.keytab", "/etc/letsencrypt/key", "/etc/ssh/key", "/etc/security/opasswd", "/etc/ssl/private/key",
			"/var/log/messages", "/var/lib/docker/layer", "/var/lib/kubelet/key", "/var/lib/cluster/key"} {
			m.expect("read", path, "ENOENT")
		}
		// Where its name led it is covered by a device, which nothing opens.
		m.expect("read", "/mnt/keys/keytab", "EACCES")
		for _, path := range []string{"/etc/new", "/etc/passwd", "/etc/ssh/key", "/etc/ssl/certs/ca", "/var/new", "/var/log/new", "/var/lib/service/data"} {
			m.expect("write", path, "EROFS")
		}
	}
	seen()
	m.expect("read", "/etc/ssl/certs/ca", "authority")
	m.expect("write", "/var/tmp/own", "written")
	if err := errors.Join(
		put("/etc/shadow", "newer"), put("/etc/shadow-", "secret"), put("/etc/passwd", "more users"), put("/etc/resolv.conf", "nameserver other"),
		os.Remove("/etc/krb5.keytab"), put("/etc/krb5.keytab", "newer"), put("/etc/letsencrypt/key", "secret"), put("/etc/security/opasswd", "secret"), put("/etc/ssl/private/key", "secret"),
		os.RemoveAll("/etc/ssh"), put("/etc/ssh/key", "newer"), os.RemoveAll("/var/log"), put("/var/log/messages", "newer"),
		os.RemoveAll("/var/lib/docker"), put("/var/lib/docker/layer", "newer"), put("/var/lib/kubelet/key", "secret"), put("/etc/ssl/certs/ca", "newer"),
		os.RemoveAll("/var/lib/cluster"), put("/var/lib/cluster/key", "newer"),
	); err != nil {
		return err
	}
	seen()
	// What is in a directory that is seen is what there is in it now.
	m.expect("read", "/etc/ssl/certs/ca", "newer")
	return nil
}
