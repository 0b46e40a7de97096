package durable

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/durable/faults"
)

// full is a file system of its own with little room.
func full(t *testing.T, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); errors.Is(err, unix.EPERM) {
		t.Skip("mounting is not allowed here")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Whatever a disk has no room for, the file that was there is there, whole, and nothing of the new one is left; with room
// again, it is written.
func TestFullDiskKeepsTheOldFile(t *testing.T) {
	for name, options := range map[string]string{"no space": "size=64k", "no inode": "size=64k,nr_inodes=4"} {
		t.Run(name, func(t *testing.T) {
			dir := full(t, options)
			path, filler := filepath.Join(dir, "kept"), filepath.Join(dir, "filler")
			old, fresh := bytes.Repeat([]byte("o"), 9000), bytes.Repeat([]byte("n"), 9000)
			if err := Write(path, old, 0o600); err != nil {
				t.Fatal(err)
			}
			if name == "no space" {
				file, err := os.Create(filler)
				if err != nil {
					t.Fatal(err)
				}
				for err == nil {
					_, err = file.Write(make([]byte, 4096))
				}
				if err := file.Close(); err != nil {
					t.Fatal(err)
				}
			} else {
				for n := 0; ; n++ {
					if err := os.WriteFile(filler+string(rune('a'+n)), nil, 0o600); err != nil {
						break
					}
				}
			}
			if err := Write(path, fresh, 0o600); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("%v", err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, old) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if left, err := filepath.Glob(filepath.Join(dir, ".kept*")); err != nil || len(left) != 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
			fillers, err := filepath.Glob(filler + "*")
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range fillers {
				if err := os.Remove(f); err != nil {
					t.Fatal(err)
				}
			}
			if err := Write(path, fresh, 0o600); err != nil {
				t.Error(err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, fresh) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

// A name that cannot be given, because the directory takes no names, leaves the old file.
func TestReadOnlyDiskKeepsTheOldFile(t *testing.T) {
	dir := full(t, "size=64k")
	path := filepath.Join(dir, "kept")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"write": Write(path, []byte("new"), 0o600), "remove": Remove(path)} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("%q, %v", got, err)
	}
}

// Whichever call fails, the name leads to the old content or the new one, whole, nothing else is left, and who asked is told.
func TestFailedCallsLeaveTheOldFileOrTheNew(t *testing.T) {
	for _, c := range []struct {
		name      string
		operation faults.Operation
		n         int
		want      string
	}{
		{"the content is not synced", faults.Sync, 1, "old"},
		{"the name is not given", faults.Rename, 1, "old"},
		// The name was given: it may lead to the new content after a power cut, or to the old one.
		{"the directory is not synced", faults.Sync, 2, "new"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "kept")
			if err := Write(path, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			var written error
			if err := faults.Do(faults.Nth(c.operation, dir, c.n, false, unix.EIO), func() { written = Write(path, []byte("new"), 0o600) }); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(written, unix.EIO) || !strings.Contains(written.Error(), dir) {
				t.Errorf("%v", written)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != c.want {
				t.Errorf("%q, %v", got, err)
			}
			if got := names(t, dir); got != "kept" {
				t.Errorf("left behind: %s", got)
			}
		})
	}
	t.Run("a removal is not synced", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "kept")
		if err := Write(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var removed error
		if err := faults.Do(faults.Nth(faults.Sync, dir, 1, false, unix.EIO), func() { removed = Remove(path) }); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(removed, unix.EIO) {
			t.Errorf("%v", removed)
		}
	})
}
