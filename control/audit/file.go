package audit

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	log  *slog.Logger
	// fsync is (*os.File).Sync but in tests.
	fsync func(*os.File) error
	// removed counts older files that went because there were too many.
	removed atomic.Uint64
	// failed is the time (Unix, nanoseconds) of the last failure to write a line that has to be on the disk, until it works
	// again.
	failed atomic.Int64

	// syncing is held while the disk is waited for; before mu.
	syncing sync.Mutex

	mu      sync.Mutex
	current *opened
}

// opened is a file that is written, from when it was opened until it is closed. Its fields are guarded by the series' mu.
type opened struct {
	file *os.File
	// began is its length when it was opened.
	began, length int64
	// written and synced number its lines: how many there are, and how many are known to be on the disk.
	written, synced uint64
	// failed is why the lines after synced may not be on the disk, and never will: after a failed fsync the kernel takes
	// pages for written that are not, so that a later one proves nothing.
	failed error
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
	f.current = &opened{file: current, began: end, length: end}
	return nil
}

// add appends a line; with durable, it is on the disk when add returns. A line is there whole or not at all.
func (f *file) add(line []byte, durable bool) error {
	f.mu.Lock()
	err := f.append(line)
	in := f.current
	var number uint64
	if err == nil {
		number = in.written
	}
	f.mu.Unlock()
	if err != nil || !durable {
		return err
	}
	return f.sync(in, number)
}

// append writes a line. The lock is held.
func (f *file) append(line []byte) error {
	if f.current != nil && f.current.length > 0 && f.current.length+int64(len(line)) > f.size {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	if f.current == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	n, err := f.current.file.Write(line)
	if err != nil {
		if n > 0 {
			// A part of a line is none.
			err = errors.Join(err, f.current.file.Truncate(f.current.length))
		}
		return err
	}
	f.current.length += int64(n)
	f.current.written++
	return nil
}

// rotate ends the full file. What waits in it to be synced must not be lost with it. The lock is held.
func (f *file) rotate() error {
	if err := f.fsync(f.current.file); err != nil {
		f.fail(f.current, err)
		return nil // Who waits for its lines is told; the next line goes to another file.
	}
	f.current.synced = f.current.written
	// Room that was taken and not used is given back.
	if err := f.current.file.Truncate(f.current.length); err != nil {
		return err
	}
	return f.setAside()
}

// setAside gives the file that is written its name for good and removes the oldest. The lock is held.
func (f *file) setAside() error {
	older, err := f.older()
	if err != nil {
		return err
	}
	// Sorting by name has to be sorting by age, and no file may take another's place, also when the clock is put back.
	at := f.now().UTC()
	if len(older) > 0 {
		if newest := f.ended(older[len(older)-1]); !at.After(newest) {
			at = newest.Add(1)
		}
	}
	name := filepath.Join(f.dir, fmt.Sprintf("%s-%s.log", f.name, at.Format(rotated)))
	if err := os.Rename(f.path(), name); err != nil {
		return err
	}
	err = f.current.file.Close()
	f.current = nil
	if err != nil {
		return err
	}
	for older = append(older, name); len(older) > f.keep; older = older[1:] {
		if err := os.Remove(older[0]); err != nil {
			return err
		}
		f.removed.Add(1)
		f.log.Info("the audit log is full: its oldest file is removed", "file", older[0], "kept", f.keep)
	}
	return nil
}

// fail gives up a file whose fsync failed: what follows goes to a new one. The lock is held.
func (f *file) fail(o *opened, cause error) {
	if o.failed != nil {
		return
	}
	o.failed = cause
	if f.current != o {
		return
	}
	var err error
	if o.synced == 0 && o.began == 0 {
		// Nothing in it was ever promised. Were it kept, a disk that goes on failing would push out all older files.
		err = errors.Join(os.Remove(f.path()), o.file.Close())
		f.current = nil
	} else {
		f.log.Error("fsync of the audit log failed: it goes on in a new file", "file", f.path(), "doubtful lines", o.written-o.synced, "error", cause)
		err = f.setAside()
	}
	if f.current != nil {
		err = errors.Join(err, o.file.Close())
		f.current = nil
	}
	if err != nil {
		f.log.Error("a file of the audit log was not ended in order", "file", f.path(), "error", err)
	}
}

// rotated is the time in the name of an older file: sorting by name is sorting by time.
const rotated = "20060102T150405.000000000"

// ended is the time in the name of an older file; zero for any other.
func (f *file) ended(path string) time.Time {
	stamp, older := strings.CutPrefix(strings.TrimSuffix(filepath.Base(path), ".log"), f.name+"-")
	if at, err := time.Parse(rotated, stamp); older && err == nil {
		return at
	}
	return time.Time{}
}

// older are the files that are not written any more, oldest first.
func (f *file) older() ([]string, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if path := filepath.Join(f.dir, e.Name()); !f.ended(path).IsZero() {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out, nil
}

// sync returns once the line of that number is on the disk. Those who wait at the same time are served by one sync.
func (f *file) sync(o *opened, number uint64) error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	f.mu.Lock()
	upto := o.written
	done, failed := o.synced >= number, o.failed
	f.mu.Unlock()
	if done {
		return nil
	}
	if failed != nil {
		return failed
	}
	err := f.fsync(o.file)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case o.synced >= number:
		// It was rotated away meanwhile, and synced before.
		return nil
	case o.failed != nil:
		return o.failed
	case err != nil:
		f.fail(o, err)
		return err
	}
	o.synced = upto
	return nil
}

func (f *file) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current == nil {
		return nil
	}
	err := f.fsync(f.current.file)
	if err == nil {
		f.current.synced = f.current.written
	}
	err = errors.Join(err, f.current.file.Close())
	f.current = nil
	return err
}
