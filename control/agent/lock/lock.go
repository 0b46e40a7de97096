// Package lock keeps processes of this machine from doing the same work at the same time. The kernel releases a lock when
// its process ends, however that happens.
package lock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld says that another process holds the lock.
var ErrHeld = errors.New("locked by another process")

// File is a held lock on a file.
type File struct {
	file *os.File
	path string
}

// Take takes the lock, or fails with ErrHeld at once. The file and its directory are made.
func Take(path string) (*File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, fmt.Errorf("make lock directory: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", path, ErrHeld)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// Whoever held it may have removed the file: a lock on a file that nobody finds any more keeps nobody out.
	var held, found unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &held); err != nil {
		f.Close()
		return nil, fmt.Errorf("look at lock: %w", err)
	}
	if err := unix.Stat(path, &found); err != nil || found.Ino != held.Ino || found.Dev != held.Dev {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, ErrHeld)
	}
	return &File{file: f, path: path}, nil
}

// retry is between attempts of Wait.
const retry = 10 * time.Millisecond

// Wait takes the lock as soon as it is free, or fails with ErrHeld when that takes longer than the patience.
func Wait(path string, patience time.Duration) (*File, error) {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	again := time.NewTicker(retry)
	defer again.Stop()
	for {
		f, err := Take(path)
		if !errors.Is(err, ErrHeld) {
			return f, err
		}
		select {
		case <-deadline.C:
			return nil, err
		case <-again.C:
		}
	}
}

// Close releases the lock.
func (f *File) Close() { f.file.Close() }

// Remove removes the file and releases the lock.
func (f *File) Remove() error {
	defer f.file.Close()
	if err := os.Remove(f.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove lock: %w", err)
	}
	return nil
}
