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
