package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process holds the lock.
var ErrLocked = errors.New("locked by another process")

// FileLock is a held lock on a file; the kernel releases it when its process ends, however that happens.
type FileLock struct{ file *os.File }

// Lock takes the lock, or fails with ErrLocked at once.
func Lock(path string) (*FileLock, error) {
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
			return nil, fmt.Errorf("%s: %w", path, ErrLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// `down` removes the file: a lock on a file that nobody finds any more keeps nobody out.
	var held, found unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &held); err != nil {
		f.Close()
		return nil, fmt.Errorf("look at lock: %w", err)
	}
	if err := unix.Stat(path, &found); err != nil || found.Ino != held.Ino || found.Dev != held.Dev {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, ErrLocked)
	}
	return &FileLock{file: f}, nil
}

// Close releases the lock.
func (l *FileLock) Close() { l.file.Close() }
