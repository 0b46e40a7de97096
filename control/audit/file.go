package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/durable"
)

// file is a series of files that are appended to: <name>.log is written, <name>-<time>.log are older ones, of which the
// oldest go.
type file struct {
	dir, name string
	// size of one file, and how many older ones are kept.
	size int64
	keep int
	now  func() time.Time

	// syncing is held while the disk is waited for; before mu.
	syncing sync.Mutex
	synced  uint64

	mu      sync.Mutex
	current *os.File
	length  int64
	written uint64
}

func (f *file) path() string { return filepath.Join(f.dir, f.name+".log") }

// open opens the file that is written. A line that was cut off by a power failure is ended, so that the next is a line of
// its own.
func (f *file) open() error {
	current, err := os.OpenFile(f.path(), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	end, err := current.Seek(0, io.SeekEnd)
	if err == nil && end > 0 {
		last := make([]byte, 1)
		if _, err = current.ReadAt(last, end-1); err == nil && last[0] != '\n' {
			_, err = current.Write([]byte{'\n'})
			end++
		}
	}
	if err == nil {
		err = durable.SyncDir(f.dir)
	}
	if err != nil {
		current.Close()
		return err
	}
	// The room of the whole file is taken now, so that it can be filled while the disk is full. A file system that cannot
	// do so, or has not so much room, gives it when it is written.
	_ = unix.Fallocate(int(current.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, f.size)
	f.current, f.length = current, end
	return nil
}

// add appends a line; with durable, it is on the disk when add returns. A line is there whole or not at all.
func (f *file) add(line []byte, durable bool) error {
	f.mu.Lock()
	err := f.append(line)
	number := f.written
	f.mu.Unlock()
	if err != nil || !durable {
		return err
	}
	return f.sync(number)
}

// append writes a line. The lock is held.
func (f *file) append(line []byte) error {
	if f.current != nil && f.length > 0 && f.length+int64(len(line)) > f.size {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	if f.current == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	n, err := f.current.Write(line)
	if err != nil {
		if n > 0 {
			// A part of a line is none.
			err = errors.Join(err, f.current.Truncate(f.length))
		}
		return err
	}
	f.length += int64(n)
	f.written++
	return nil
}

// rotate gives the full file its name for good and removes the oldest. The lock is held.
func (f *file) rotate() error {
	// What waits to be synced must not be lost with the file that it is in.
	if err := f.current.Sync(); err != nil {
		return err
	}
	// Room that was taken and not used is given back.
	if err := f.current.Truncate(f.length); err != nil {
		return err
	}
	older := filepath.Join(f.dir, fmt.Sprintf("%s-%s.log", f.name, f.now().UTC().Format(rotated)))
	if err := os.Rename(f.path(), older); err != nil {
		return err
	}
	err := f.current.Close()
	f.current, f.length = nil, 0
	if err != nil {
		return err
	}
	files, err := f.files()
	if err != nil {
		return err
	}
	for len(files) > f.keep {
		if err := os.Remove(files[0]); err != nil {
			return err
		}
		files = files[1:]
	}
	return nil
}

// rotated is the time in the name of an older file: sorting by name is sorting by time.
const rotated = "20060102T150405.000000000"

// files are the older ones, oldest first, and the one that is written.
func (f *file) files() ([]string, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		stamp, older := strings.CutPrefix(strings.TrimSuffix(e.Name(), ".log"), f.name+"-")
		if _, err := time.Parse(rotated, stamp); older && err == nil {
			out = append(out, filepath.Join(f.dir, e.Name()))
		}
	}
	slices.Sort(out)
	if _, err := os.Stat(f.path()); err == nil {
		out = append(out, f.path())
	}
	return out, nil
}

// sync returns once the line of that number is on the disk. Those who wait at the same time are served by one sync.
func (f *file) sync(number uint64) error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	if f.synced >= number {
		return nil
	}
	f.mu.Lock()
	current, upto := f.current, f.written
	f.mu.Unlock()
	// A file that was rotated away since was synced before.
	if current != nil {
		if err := current.Sync(); err != nil && !errors.Is(err, os.ErrClosed) {
			return err
		}
	}
	f.synced = upto
	return nil
}

func (f *file) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current == nil {
		return nil
	}
	err := errors.Join(f.current.Sync(), f.current.Close())
	f.current = nil
	return err
}
