// Package durable is how everything that outlives a process is written: a file is the old one or the new one, whole, also
// after a kill or a power cut at any moment. The content is synced before it takes the name, and the directory after, so
// that what was written once stays (rename(2), fsync(2)).
//
// What is small, or changes seldom, is one file of JSON ([WriteJSON]). A set whose changes must not cost what the set has is
// a table ([heddle.io/heddle/control/durable/table]), of objects as a rule ([heddle.io/heddle/control/durable/objectfile]).
package durable

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
)

// ErrTorn says that a file holds only a part of what was written: nothing, zeroes, or a beginning.
var ErrTorn = errors.New("the file is torn: its end is missing")

// Write replaces a file, or makes it. The mode holds whatever the umask and an older file's mode are; an older file keeps
// its owner.
func Write(path string, content []byte, mode fs.FileMode) error {
	uid, gid := -1, -1
	if info, err := os.Stat(path); err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && (int(stat.Uid) != os.Geteuid() || int(stat.Gid) != os.Getegid()) {
			uid, gid = int(stat.Uid), int(stat.Gid)
		}
	}
	return WriteFor(path, content, mode, uid, gid)
}

// WriteFor is [Write] for a file that belongs to somebody else; -1 leaves the user or the group at the caller's.
func WriteFor(path string, content []byte, mode fs.FileMode, uid, gid int) (err error) {
	dir := filepath.Dir(path)
	// In the same directory: elsewhere may be another file system, or one that all may write to.
	pending, err := renameio.NewPendingFile(path, renameio.WithTempDir(dir), renameio.WithPermissions(mode), renameio.WithStaticPermissions(mode))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if uid >= 0 || gid >= 0 {
		err = pending.Chown(uid, gid)
	}
	if err == nil {
		_, err = pending.Write(content)
	}
	if err == nil {
		err = pending.CloseAtomicallyReplace()
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, pending.Cleanup()))
	}
	return SyncDir(dir)
}

// WriteJSON is [Write] of a value, indented for people.
func WriteJSON(path string, value any, mode fs.FileMode) error {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return Write(path, append(content, '\n'), mode)
}

// ReadJSON reads what [WriteJSON] wrote. A missing file gives os.ErrNotExist, a part of one [ErrTorn]; every error names
// the file.
func ReadJSON(path string, into any) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := Decode(content, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Decode is [ReadJSON] for content that was read already.
func Decode(content []byte, into any) error {
	// Some file systems give zeroes for what had not reached the disk.
	written := bytes.TrimRight(content, "\x00")
	decoder := json.NewDecoder(bytes.NewReader(written))
	if err := decoder.Decode(new(json.RawMessage)); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w (%d bytes are there)", ErrTorn, len(written))
	}
	return json.Unmarshal(content, into)
}

// Remove removes a file for good; it need not be there.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes the names in a directory durable: what was made, renamed and removed there.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", path, err)
	}
	return nil
}

// unfinished is the name of a file that a writer which was killed left behind: a dot, the name, a random number.
var unfinished = regexp.MustCompile(`^\..+[^0-9][0-9]{10,19}$`)

// Sweep removes what writers that were killed left in a directory before a time, which keeps those that write now out of
// it. The directory need not exist.
func Sweep(dir string, before time.Time) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for unfinished files: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !e.Type().IsRegular() || !unfinished.MatchString(e.Name()) {
			continue
		}
		info, err := e.Info()
		if err == nil && info.ModTime().Before(before) {
			err = os.Remove(filepath.Join(dir, e.Name()))
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove unfinished file: %w", err))
		}
	}
	return errors.Join(errs...)
}
