// Package table opens tables of bbolt that outlived a kill or a power cut. bbolt trusts its pages: one that is not what was
// written has it panic, or read memory that is not there. Here that is [ErrDamaged], and the table is given up.
package table

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"heddle.io/heddle/control/durable"
)

// ErrDamaged says that a file is no table, or not whole. What it held is unknown, not nothing.
var ErrDamaged = errors.New("the file is damaged, or no table")

// lockPatience is how long another process, killed a moment ago, may still hold the file.
const lockPatience = 5 * time.Second

// Table is an open file. It is for one goroutine at a time.
type Table struct {
	// db is nil after a write that panicked: its locks are as they were then, so that closing it could wait for ever. Its lock of
	// the file stays as long as the process, so that what takes its place is another file.
	db *bbolt.DB
}

// Open opens a table, or makes it.
func Open(path string) (*Table, error) {
	return open(path, &bbolt.Options{Timeout: lockPatience, FreelistType: bbolt.FreelistMapType})
}

// OpenToRead opens a table that is there, and os.ErrNotExist if it is not.
func OpenToRead(path string) (*Table, error) {
	// bbolt would fill an empty one.
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if info.Size() == 0 {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, durable.ErrTorn)
	}
	return open(path, &bbolt.Options{Timeout: lockPatience, ReadOnly: true})
}

func open(path string, options *bbolt.Options) (*Table, error) {
	t := &Table{}
	var machine syscall.Errno
	err := guarded(func() (err error) {
		if t.db, err = bbolt.Open(path, 0o600, options); err != nil {
			if errors.As(err, &machine) || errors.Is(err, bbolterrors.ErrTimeout) {
				return err
			}
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// Pages that are not there are a fault of memory, which other goroutines than this one would end by.
	err = t.View(func(tx *bbolt.Tx) error {
		if info, err := os.Stat(path); err != nil || info.Size() < tx.Size() {
			return errors.Join(fmt.Errorf("%w: %w", ErrDamaged, durable.ErrTorn), err)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// View reads.
func (t *Table) View(read func(*bbolt.Tx) error) error {
	if t.db == nil {
		return ErrDamaged
	}
	return guarded(func() error { return t.db.View(read) })
}

// Update writes, whole or not at all: what it wrote is on the disk when it returns. A table that turns out to be damaged is
// given up.
func (t *Table) Update(write func(*bbolt.Tx) error) error {
	if t.db == nil {
		return ErrDamaged
	}
	returned := false
	err := guarded(func() error {
		err := t.db.Update(write)
		returned = true
		return err
	})
	if !returned {
		t.db = nil
	}
	return err
}

// Unused is how many bytes of the file nothing is in, of how many. bbolt uses them again, and never gives them back.
func (t *Table) Unused() (bytes, of int64, err error) {
	err = t.View(func(tx *bbolt.Tx) error {
		bytes, of = int64(t.db.Stats().FreeAlloc), tx.Size()
		return nil
	})
	return bytes, of, err
}

// Close leaves the file to who comes next. It may be closed twice.
func (t *Table) Close() error {
	if t.db == nil {
		return nil
	}
	db := t.db
	t.db = nil
	return db.Close()
}

// maxStack bounds what an error says of where it came from, in bytes.
const maxStack = 2 << 10

// guarded has what a damaged page does in bbolt, a panic or a fault of memory, as an error. A mistake in what reads or writes panics, too:
// the error says where, so that nobody has to blame the disk.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			stack := debug.Stack()
			err = fmt.Errorf("%w, or the program has an error: %v, at %s", ErrDamaged, p, stack[:min(len(stack), maxStack)])
		}
	}()
	return f()
}
