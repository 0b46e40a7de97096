package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/store"
)

// etcd ends its process when a write to the disk fails, and needs space to start again. So that a full disk costs no
// more than writes:
//
//   - writes are refused while less than reserveBytes is free, and deletions while less than deletingBytes is;
//   - a file of the same size is kept aside. When something else fills the disk to the last byte, etcd ends, and the file
//     is given up for it to start again: what was acknowledged can be read.
//
// The reserve holds another segment of etcd's log (64 MiB), what its database grows by at a time (16 MiB), and the writes
// that are under way.
const reserveBytes = 128 << 20

// deletingBytes holds the log of the deletions that make room: some hundred bytes each.
const deletingBytes = 32 << 20

// disk is the file system that the store lies on.
type disk struct {
	dir string
	// free is the space in bytes of the file system that holds a path.
	free func(path string) (uint64, error)
}

func newDisk(dir string) disk { return disk{dir: dir, free: freeBytes} }

func freeBytes(path string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, err
	}
	return fs.Bavail * uint64(fs.Bsize), nil
}

func (d disk) reserve() string { return filepath.Join(d.dir, "reserve") }

// prepare gives up the reserve when etcd could not start otherwise.
func (d disk) prepare() error {
	free, err := d.free(d.dir)
	if err != nil {
		return fmt.Errorf("free space of %s: %w", d.dir, err)
	}
	if free >= reserveBytes {
		return nil
	}
	if err := os.Remove(d.reserve()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("give up reserved space: %w", err)
	}
	return nil
}

// room says why there is too little space for a write that needs so much, if so. It makes the reserve when there is plenty.
func (d disk) room(needed uint64) error {
	free, err := d.free(d.dir)
	if err != nil {
		return fmt.Errorf("%w: free space of %s: %w", store.ErrUnavailable, d.dir, err)
	}
	if free < needed {
		return fmt.Errorf("%w: the disk is full: %d MiB are free in %s, and %d must stay free for what was written to be safe",
			store.ErrUnavailable, free>>20, d.dir, needed>>20)
	}
	if free >= 2*reserveBytes {
		d.keepReserve()
	}
	return nil
}

// keepReserve sets the space aside. Where the file system cannot do so, the store works without.
func (d disk) keepReserve() {
	file, err := os.OpenFile(d.reserve(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return // Mostly because it is there.
	}
	if errors.Join(unix.Fallocate(int(file.Fd()), 0, 0, reserveBytes), file.Close()) != nil {
		_ = os.Remove(d.reserve())
	}
}
