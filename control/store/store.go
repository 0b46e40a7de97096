// Package store is the one interface behind which objects are kept: get, list, watch, write, status.
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
	// ErrConflict: the object changed since the revision that the write names.
	ErrConflict = errors.New("changed by someone else meanwhile")
	// ErrUnavailable: the store cannot be reached or cannot write (no quorum, disk full).
	ErrUnavailable = errors.New("store unavailable")
	// ErrCompacted: the watch's revision is gone; list and watch anew.
	ErrCompacted = errors.New("revision compacted")
)

// Write is one change in a batch.
type Write struct {
	// Key of the object.
	Key objects.Key
	// Object is the new content; nil deletes.
	Object *objects.Object
	// IfRevision, when not zero, makes the batch fail with ErrConflict unless the object has this revision;
	// -1 demands that it does not exist.
	IfRevision int64
}

// Event is one change seen by a watch.
type Event struct {
	Key objects.Key
	// Object is nil when it was deleted.
	Object *objects.Object
	// Revision of the store after the change.
	Revision int64
	// StatusOnly says that only the status changed.
	StatusOnly bool
}

// Store keeps objects. Implementations are safe for concurrent use. Each write is durable before it returns.
type Store interface {
	// Get returns one object, or ErrNotFound.
	Get(ctx context.Context, key objects.Key) (*objects.Object, error)
	// List returns the objects of a kind (nil: all kinds) in a namespace (empty: all), sorted by key, and the
	// revision of the store they were read at.
	List(ctx context.Context, kind *objects.Kind, namespace string) ([]*objects.Object, int64, error)
	// Watch sends every change after the revision, in order, in batches of one revision, until ctx ends; then the
	// channel is closed. An error before that arrives through the returned function once the channel is closed.
	Watch(ctx context.Context, after int64) (<-chan []Event, func() error)
	// Apply makes all changes or none and returns the new revision.
	Apply(ctx context.Context, writes []Write) (int64, error)
	// SetStatus changes only an object's status.
	SetStatus(ctx context.Context, key objects.Key, status objects.Status) error
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
