package durable

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
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
