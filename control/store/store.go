// Package store is the contract behind which objects are kept. etcd and the Kubernetes API server can both keep it, so it
// promises no more than both do:
//
//   - an object has a version, which says nothing but whether two are the same; there is no revision of the whole store;
//   - one write changes one object. Several are a [Batch], which package journal finishes or reports when it is
//     interrupted;
//   - a status is apart from what it is about, and has versions and conflicts of its own;
//   - a watch is of one kind, may break at any time, and goes on from where it was, or says that it cannot.
package store

import (
	"context"
	"errors"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
)

// Errors that every store returns, to be tested with errors.Is.
var (
	// ErrNotFound: no object of that key.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the object, or its status, has another version than the write names. Nothing was written.
	ErrConflict = errors.New("changed by someone else meanwhile")
	// ErrUnavailable: the store cannot be reached or cannot write (no quorum, disk full). The write may have been made all
	// the same, unless the error is [ErrFull] too.
	ErrUnavailable = errors.New("store unavailable")
	// ErrFull: there is no room for what is written. Nothing was written; reading and deleting go on.
	ErrFull = errors.New("store full")
	// ErrExpired: a watch cannot go on from its position, because that is too old or its reader too slow; list and watch
	// anew.
	ErrExpired = errors.New("position of the watch expired")
	// ErrTooLarge: one object, or one record, is larger than the store takes. Nothing was written.
	ErrTooLarge = errors.New("too large for the store")
)

// Absent as the version that a write demands: the object must not exist.
const Absent objects.Version = "absent"

// Write is one change of one object.
type Write struct {
	// Key of the object.
	Key objects.Key
	// Object is the new content; nil deletes, with the status. Its own versions and status are passed over.
	Object *objects.Object
	// IfVersion, when not empty, makes the write fail with ErrConflict unless the object has this version; [Absent] demands
	// that it does not exist.
	IfVersion objects.Version
}

// Position is where in the changes of one kind a list or an event stands. It is opaque, and of use to the store alone that
// gave it.
type Position string

// Event is one change seen by a watch.
type Event struct {
	Key objects.Key
	// Object with its status after the change; nil when it was deleted.
	Object *objects.Object
	// Position to watch on from.
	Position Position
	// StatusOnly says that only the status changed.
	StatusOnly bool
}

// Exported is an object as a store keeps it.
type Exported struct {
	Key objects.Key `json:"key"`
	// Content is of use to a store of the same sort alone.
	Content []byte `json:"content"`
}

// QueueLength is how many events a watch keeps for a reader that is slow; one that falls further behind hears
// [ErrExpired].
const QueueLength = 8192

// Store keeps objects. Implementations are safe for concurrent use. Each write is durable before it returns. All reads see
// every write that returned before they began.
type Store interface {
	// Get returns one object, or ErrNotFound.
	Get(ctx context.Context, key objects.Key) (*objects.Object, error)
	// Versions returns the version of each object, [Absent] for those that are not there, not as of one moment. It costs what
	// it asks for, whatever else there is.
	Versions(ctx context.Context, keys []objects.Key) ([]objects.Version, error)
	// List returns the objects of a kind in a namespace (empty: all), sorted by key, and where a watch of that kind that
	// misses nothing begins.
	List(ctx context.Context, kind *objects.Kind, namespace string) ([]*objects.Object, Position, error)
	// Watch sends the changes of a kind after a position until ctx ends or the watch breaks; then the channel is closed and
	// the returned function says why, nil for the end of ctx. Changes of one object arrive in order, and each of them;
	// those of several objects in any order.
	Watch(ctx context.Context, kind *objects.Kind, after Position) (<-chan Event, func() error)
	// Write makes one change and returns the object's version after it, empty when it was deleted. To delete what is not
	// there is no error, but with a version demanded a conflict.
	Write(ctx context.Context, write Write) (objects.Version, error)
	// SetStatus changes only an object's status, if it has this version (empty: whatever it has), and returns the status's
	// version after it. It is ErrConflict when it has not, and ErrNotFound without the object. Stores may take a change of
	// the object for one of its status here.
	SetStatus(ctx context.Context, key objects.Key, status objects.Status, ifVersion objects.Version) (objects.Version, error)
	// Export gives every object as it is kept, secrets sealed, without statuses, as of one moment for each kind.
	Export(ctx context.Context, f func(Exported) error) error
	// Import reads what Export gave. It writes nothing; the error says so when what is sealed does not open.
	Import(e Exported) (*objects.Object, error)
	// Records are what package journal keeps beside the objects.
	Records() Records
	// Close releases the store.
	Close() error
}

// Sealing is implemented by stores that encrypt Secrets by themselves.
type Sealing interface {
	// SecretsStatus says with which keys Secrets are sealed, and which cannot be decrypted.
	SecretsStatus(ctx context.Context) (seal.Status, error)
	// RotateSecrets has every Secret sealed with the newest key, forgets what older revisions held, and then the older
	// keys. It makes a new key if anew, unless a rotation is left to be finished.
	RotateSecrets(ctx context.Context, anew bool) (seal.Status, error)
	// ReloadKeys reads the keys again and says whether others can be used than before.
	ReloadKeys(ctx context.Context) (bool, error)
}

// Records keeps texts of up to [MaxRecordBytes] by name (letters, digits and hyphens), whole or not at all.
type Records interface {
	// Put keeps a record that is not there yet, durably. One with the content of Secrets in it is kept as those are, and is
	// [seal.ErrNoKey] when they could not be; others need no key.
	Put(ctx context.Context, name string, content []byte, secret bool) error
	// Get returns a record, or ErrNotFound. It is [seal.ErrClosed] when the record cannot be decrypted now.
	Get(ctx context.Context, name string) ([]byte, error)
	// All returns the records that are whole, and why those cannot be read that are [seal.ErrClosed]. It removes what is
	// left of records that are not whole, which nobody was told of.
	All(ctx context.Context) (read map[string][]byte, closed map[string]error, err error)
	// Delete removes a record, durably; it need not be there.
	Delete(ctx context.Context, name string) error
}

// MaxRecordBytes is the size of a record that every store must be able to keep.
const MaxRecordBytes = 64 << 20

// Batch is what the parts of the controller write through: a store, and changes of several objects.
type Batch interface {
	Store
	// Apply makes all changes. The versions that they demand are all looked at before the first is made; when one does not
	// hold, it is ErrConflict and nothing is written. An error that is [ErrInterrupted] too says that some are made, and
	// that the rest is made or reported later.
	Apply(ctx context.Context, writes []Write) error
	// Finish makes what is left of batches that were interrupted, before anything is checked against what is there.
	Finish(ctx context.Context) error
	// Discard gives up a batch that waits for a key, by its identifier, and returns the objects that are not as it would have
	// them, as far as they can be read. It is ErrNotFound when none of that name waits.
	Discard(ctx context.Context, id string) ([]objects.Key, error)
	// Object is one of [Batch.Objects], nil for none.
	Object(key objects.Key) *objects.Object
	// Objects are all objects, with everything that was written through this interface, in no order. They are shared and
	// must not be changed.
	Objects() []*objects.Object
}

// ErrInterrupted says that a batch was begun and is not finished. It is kept, and finished or reported.
var ErrInterrupted = errors.New("interrupted, and to be finished")
