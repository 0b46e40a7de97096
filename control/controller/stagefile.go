package controller

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/durable/table"
	"heddle.io/heddle/control/objects"
)

// stageFile is what a controller that was killed leaves to the next one: the objects of the newest generation, and those
// that were otherwise in the generations that clients still go by. The store says only what is wanted now; what it took
// while no controller looked is a change like any other by this. Writing costs what changed.
type stageFile struct {
	path string
	db   *table.Table
}

// Buckets of the file. Keys are objects' in JSON. Values are an object's version, a line's end and the object in JSON, so
// that objects are decoded only when they have changed; empty for an object that there was not.
var (
	newestBucket  = []byte("newest")
	clientsBucket = []byte("clients")
	formerBucket  = []byte("former")
)

// open opens the file, or makes it.
func (f *stageFile) open() (err error) {
	if f.db == nil {
		f.db, err = table.Open(f.path)
	}
	return err
}

// failed is the error of that file. One that is damaged gives way to a new one, which the next write has to fill.
func (f *stageFile) failed(err error) error {
	if errors.Is(err, table.ErrDamaged) {
		err = errors.Join(err, f.close(), durable.Remove(f.path))
	}
	return fmt.Errorf("%s: %w", f.path, err)
}

func (f *stageFile) close() error {
	if f.db == nil {
		return nil
	}
	db := f.db
	f.db = nil
	return db.Close()
}

// left is what of the objects was otherwise in a generation, nil for one that there was not.
type left map[objects.Key]*objects.Object

// generationsLeft is how the objects of the last controller's generations differ from those that there are now.
type generationsLeft struct {
	// newest is nil when there was no controller before.
	newest left
	// clients went by these, and some may still have gone by the former ones; those are nil when all had left them.
	clients, former left
}

// read compares what is kept with the objects that there are now.
func (f *stageFile) read(now map[objects.Key]*objects.Object) (were generationsLeft, err error) {
	if err := f.open(); err != nil {
		return were, f.failed(err)
	}
	err = f.db.View(func(tx *bbolt.Tx) error {
		newest := tx.Bucket(newestBucket)
		if newest == nil {
			return nil
		}
		known := make(map[objects.Key]bool, len(now))
		were.newest = left{}
		if err := eachKept(newest, now, func(key objects.Key, o *objects.Object) {
			known[key] = true
			if !sameVersion(o, now[key]) {
				were.newest[key] = o
			}
		}); err != nil {
			return err
		}
		for key := range now {
			if !known[key] {
				were.newest[key] = nil
			}
		}
		overlaid := func(bucket []byte) (left, error) {
			out, b := maps.Clone(were.newest), tx.Bucket(bucket)
			if b == nil {
				return out, nil
			}
			return out, eachKept(b, now, func(key objects.Key, o *objects.Object) {
				if out[key] = o; sameVersion(o, now[key]) {
					delete(out, key)
				}
			})
		}
		if were.clients, err = overlaid(clientsBucket); err != nil || tx.Bucket(formerBucket) == nil {
			return err
		}
		were.former, err = overlaid(formerBucket)
		return err
	})
	if err != nil {
		return generationsLeft{}, f.failed(err)
	}
	return were, nil
}

// eachKept calls f with the objects of a bucket; one that is as it is now is that one.
func eachKept(b *bbolt.Bucket, now map[objects.Key]*objects.Object, f func(objects.Key, *objects.Object)) error {
	return b.ForEach(func(k, v []byte) error {
		var key objects.Key
		if err := json.Unmarshal(k, &key); err != nil {
			return fmt.Errorf("key %q: %w", k, err)
		}
		version, text, found := bytes.Cut(v, []byte("\n"))
		if !found {
			f(key, nil)
			return nil
		}
		if o := now[key]; o != nil && o.Version == objects.Version(version) {
			f(key, o)
			return nil
		}
		o := new(objects.Object)
		if err := json.Unmarshal(text, o); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		f(key, o)
		return nil
	})
}

// stageChange is what is new in the file.
type stageChange struct {
	// newest are objects of the newest generation, nil for those that are gone; whole says that they are all there are.
	newest map[objects.Key]*objects.Object
	whole  bool
	// clients and former are what was otherwise in those generations, nil for those that nobody goes by any more; moved says
	// that they are other generations than before, and else only what is in newest is new in them.
	clients, former left
	moved           bool
}

// write keeps a change, whole or not at all. After [table.ErrDamaged] nothing is kept.
func (f *stageFile) write(c stageChange) error {
	if err := f.open(); err != nil {
		return f.failed(err)
	}
	err := f.db.Update(func(tx *bbolt.Tx) error {
		newest, err := bucket(tx, newestBucket, c.whole)
		if err != nil {
			return err
		}
		for key, o := range c.newest {
			if o == nil {
				k, err := json.Marshal(key)
				if err != nil {
					return err
				}
				if err := newest.Delete(k); err != nil {
					return err
				}
			} else if err := put(newest, key, o); err != nil {
				return err
			}
		}
		for _, g := range []struct {
			name []byte
			left left
		}{{clientsBucket, c.clients}, {formerBucket, c.former}} {
			if g.left == nil {
				if err := tx.DeleteBucket(g.name); err != nil && !errors.Is(err, bbolterrors.ErrBucketNotFound) {
					return err
				}
				continue
			}
			b, err := bucket(tx, g.name, c.moved)
			if err != nil {
				return err
			}
			for key, o := range g.left {
				if _, changed := c.newest[key]; !c.moved && !changed {
					continue
				}
				if err := put(b, key, o); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return f.failed(err)
	}
	return nil
}

// bucket is the one of that name, an empty one if asked for.
func bucket(tx *bbolt.Tx, name []byte, empty bool) (*bbolt.Bucket, error) {
	if empty {
		if err := tx.DeleteBucket(name); err != nil && !errors.Is(err, bbolterrors.ErrBucketNotFound) {
			return nil, err
		}
	}
	return tx.CreateBucketIfNotExists(name)
}

// put keeps an object without its status, which proxies do not go by.
func put(b *bbolt.Bucket, key objects.Key, o *objects.Object) error {
	k, err := json.Marshal(key)
	if err != nil || o == nil {
		return errors.Join(err, b.Put(k, nil))
	}
	bare := *o
	bare.Status = objects.Status{}
	text, err := json.Marshal(&bare)
	if err != nil {
		return err
	}
	return b.Put(k, append([]byte(o.Version+"\n"), text...))
}
