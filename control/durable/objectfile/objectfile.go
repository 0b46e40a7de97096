// Package objectfile keeps a set of objects, or of other things with keys, on the disk for who comes after a process that may be killed at
// any moment. A change costs what changed and is there whole or not at all; of a damaged file nothing is believed.
package objectfile

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"

	"go.etcd.io/bbolt"

	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/durable/table"
	"heddle.io/heddle/control/objects"
)

// ErrDamaged says that a file is none of this package's, or not whole. What it held is unknown, not nothing.
var ErrDamaged = table.ErrDamaged

// The table has one bucket, whose sequence is the number of its entries. A key is in JSON; a value is a checksum of the key and of the
// object, and the object in JSON. bbolt has checksums of its own for the root of its pages only.
var bucketName = []byte("objects")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const checksumBytes = 4

// A file from spaciousBytes on of which nothing is in all but a usedShare-th part is written anew, as small as what it holds.
const (
	spaciousBytes = 1 << 20
	usedShare     = 4
)

// Set is a set of things on the disk, by their keys. It is for one goroutine at a time.
type Set[K comparable, V any] struct {
	path string
	// db is nil until a set was written, and after a write that failed: the next one writes the whole set.
	db *table.Table
	// keepsLast is of [Set.KeepLast].
	keepsLast bool
}

// File is a set of objects on the disk.
type File = Set[objects.Key, *objects.Object]

// Open is [OpenSet] for objects.
func Open(path string) (*File, map[objects.Key]*objects.Object, error) {
	return OpenSet[objects.Key, *objects.Object](path)
}

// NewSet is a set that was not kept yet; what there is under its path gives way to the first set that is written.
func NewSet[K comparable, V any](path string) *Set[K, V] { return &Set[K, V]{path: path} }

// KeepLast has a write that fails leave what was written before, rather than no file: for who comes next that is true enough, and better
// than nothing.
func (f *Set[K, V]) KeepLast() { f.keepsLast = true }

// OpenSet reads what was kept last. The set is nil where nothing was kept, which is another thing than a set of none. With an
// error, which names the file, nothing is known of it ([ErrDamaged]); the file is there still, and gives way to the
// first set that is written.
func OpenSet[K comparable, V any](path string) (*Set[K, V], map[K]V, error) {
	f := NewSet[K, V](path)
	kept, err := read[K, V](path)
	if errors.Is(err, os.ErrNotExist) {
		return f, nil, nil
	}
	if err != nil {
		return f, nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, kept, nil
}

func read[K comparable, V any](path string) (kept map[K]V, err error) {
	db, err := table.OpenToRead(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketName)
		if b == nil {
			return fmt.Errorf("%w: there is no bucket %q", ErrDamaged, bucketName)
		}
		kept = map[K]V{}
		if err := b.ForEach(func(k, v []byte) error {
			if len(v) < checksumBytes || binary.BigEndian.Uint32(v) != checksum(k, v[checksumBytes:]) {
				return fmt.Errorf("%w: the entry %.200q is not what was written", ErrDamaged, k)
			}
			var key K
			var value V
			if err := errors.Join(json.Unmarshal(k, &key), json.Unmarshal(v[checksumBytes:], &value)); err != nil {
				return fmt.Errorf("the entry %s: %w", k, err)
			}
			kept[key] = value
			return nil
		}); err != nil {
			return err
		}
		if n := b.Sequence(); n != uint64(len(kept)) {
			return fmt.Errorf("%w: of %d objects %d are there", ErrDamaged, n, len(kept))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return kept, nil
}

func checksum(key, object []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, object)
}

// Replace writes a whole set, in a file of its own that then takes the name: what was there before is neither needed nor
// trusted, and goes where the set cannot be written (see [Set.KeepLast]).
func (f *Set[K, V]) Replace(all map[K]V) error {
	return errors.Join(f.Close(), f.replace(all))
}

// Remove removes a set that nobody has open, and what a killed writer left of one.
func Remove(path string) error {
	return errors.Join(durable.Remove(path), durable.Remove(unfinished(path)))
}

// unfinished is where a whole set is written before it takes the name.
func unfinished(path string) string { return path + ".new" }

func (f *Set[K, V]) replace(all map[K]V) error {
	next := unfinished(f.path)
	if err := durable.Remove(next); err != nil {
		return f.failed(err)
	}
	db, err := table.Open(next)
	if err != nil {
		return f.failed(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket(bucketName)
		if err != nil {
			return err
		}
		if err := put(b, all); err != nil {
			return err
		}
		return b.SetSequence(uint64(len(all)))
	})
	if err == nil {
		err = os.Rename(next, f.path)
	}
	if err == nil {
		err = durable.SyncDir(filepath.Dir(f.path))
	}
	if err != nil {
		return f.failed(errors.Join(err, db.Close(), durable.Remove(next)))
	}
	f.db = db
	return nil
}

// failed also removes the file: what is in it is not the set any more, and no file tells who comes next that nothing is known.
func (f *Set[K, V]) failed(err error) error {
	if f.keepsLast {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	return fmt.Errorf("%s: %w", f.path, errors.Join(err, durable.Remove(f.path)))
}

// Change writes what stands under keys as it is in the set, or takes it out where the set has none: all of it, or nothing. Where the file
// may not hold the rest of the set, because nothing was written yet or the write before failed, it writes all of that. After an error
// there is no file, until a write succeeds (see [Set.KeepLast]).
func (f *Set[K, V]) Change(all map[K]V, keys ...K) error {
	values, gone := make(map[K]V, len(keys)), []K(nil)
	for _, key := range keys {
		if value, there := all[key]; there {
			values[key] = value
		} else {
			gone = append(gone, key)
		}
	}
	return f.Update(values, gone, len(all), func() map[K]V { return all })
}

// Update is [Set.Change] for who has not the whole set at hand: what stands under keys now, keys under which nothing does, and how much the
// set has then. All gives the set where all of it is to be written.
func (f *Set[K, V]) Update(values map[K]V, gone []K, size int, all func() map[K]V) error {
	if f.db == nil {
		return f.replace(all())
	}
	err := f.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketName)
		if err := put(b, values); err != nil {
			return err
		}
		for _, key := range gone {
			k, err := json.Marshal(key)
			if err != nil {
				return err
			}
			if err := b.Delete(k); err != nil {
				return err
			}
		}
		return b.SetSequence(uint64(size))
	})
	if err != nil {
		return f.failed(errors.Join(err, f.Close()))
	}
	if unused, of, err := f.db.Unused(); err != nil || of >= spaciousBytes && unused > of-of/usedShare {
		// Written as from nothing by the next one.
		return errors.Join(err, f.Close())
	}
	return nil
}

// put writes entries in the order of their keys: until it is written, bbolt keeps what is new in one sorted list, in which each entry out of
// order moves those behind it.
func put[K comparable, V any](b *bbolt.Bucket, entries map[K]V) error {
	type entry struct{ key, value []byte }
	all := make([]entry, 0, len(entries))
	for key, value := range entries {
		k, err := json.Marshal(key)
		if err != nil {
			return err
		}
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		all = append(all, entry{k, append(binary.BigEndian.AppendUint32(nil, checksum(k, text)), text...)})
	}
	slices.SortFunc(all, func(x, y entry) int { return bytes.Compare(x.key, y.key) })
	for _, e := range all {
		if err := b.Put(e.key, e.value); err != nil {
			return err
		}
	}
	return nil
}

// Close leaves the file to who comes next. A set of nobody is closed.
func (f *Set[K, V]) Close() error {
	if f == nil || f.db == nil {
		return nil
	}
	db := f.db
	f.db = nil
	return db.Close()
}
