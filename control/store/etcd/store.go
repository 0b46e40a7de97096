package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
)

// noStatus is the version of a status that was never written.
const noStatus objects.Version = "0"

// Store implements [store.Store] on etcd.
type Store struct {
	client *clientv3.Client
	keys   *seal.Ring
	// rotating is held by the one rotation of keys that is under way.
	rotating sync.Mutex
	// writing is held for reading from when Secrets are sealed until they are stored: a rotation waits for those that were
	// sealed with the key of before.
	writing sync.RWMutex
	stop    func()
	// endpoints of the members; defragment rewrites the database of one, without what is no longer in it.
	endpoints  []string
	defragment func(ctx context.Context, endpoint string) error
	// room says why the disk has no space for a write; nil without an embedded member.
	room func(needed uint64) error
	// limit bounds requests whose callers set none; zero without a bound.
	limit time.Duration
	// prefix is below what an external cluster has the keys; empty for a member of this process.
	prefix string
	// full is set while the store's quota is used up.
	full *alarm
	// looked is what is known of how Secrets are sealed.
	looked looked
}

var (
	_ store.Store   = (*Store)(nil)
	_ store.Sealing = (*Store)(nil)
)

// Close ends the store and the embedded member.
func (s *Store) Close() error {
	s.full.close()
	err := s.client.Close()
	if s.stop != nil {
		s.stop()
	}
	if errors.Is(err, context.Canceled) {
		return nil // The in-process client's way to say that it is closed.
	}
	return err
}

func version(revision int64) objects.Version { return objects.Version(strconv.FormatInt(revision, 10)) }

func position(revision int64) store.Position { return store.Position(strconv.FormatInt(revision, 10)) }

// bound gives requests the store's limit.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, s.limit)
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, key objects.Key) (*objects.Object, error) {
	return s.at(ctx, key, 0)
}

// at reads an object and its status as of one revision; zero means now.
func (s *Store) at(ctx context.Context, key objects.Key, revision int64) (*objects.Object, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	got, err := s.client.Txn(ctx).Then(
		clientv3.OpGet(specKey(key), clientv3.WithRev(revision)), clientv3.OpGet(statusKey(key), clientv3.WithRev(revision))).Commit()
	if err != nil {
		return nil, s.translate(err)
	}
	spec, status := got.Responses[0].GetResponseRange().Kvs, got.Responses[1].GetResponseRange().Kvs
	if len(spec) == 0 {
		return nil, fmt.Errorf("%s: %w", key, store.ErrNotFound)
	}
	o, err := s.decode(spec[0])
	if err != nil {
		return nil, err
	}
	if len(status) == 1 {
		err = withStatus(o, status[0])
	}
	return o, err
}

func withStatus(o *objects.Object, kv *mvccpb.KeyValue) (err error) {
	o.Status, err = decodeStatus(kv)
	o.StatusVersion = version(kv.ModRevision)
	return err
}

// getsAtOnce is how many keys one request reads: etcd's default limit on the operations of a transaction.
const getsAtOnce = 128

// Versions implements [store.Store].
func (s *Store) Versions(ctx context.Context, keys []objects.Key) ([]objects.Version, error) {
	versions := make([]objects.Version, 0, len(keys))
	for part := range slices.Chunk(keys, getsAtOnce) {
		gets := make([]clientv3.Op, len(part))
		for i, key := range part {
			gets[i] = clientv3.OpGet(specKey(key))
		}
		ctx, cancel := s.bound(ctx)
		got, err := s.client.Txn(ctx).Then(gets...).Commit()
		cancel()
		if err != nil {
			return nil, s.translate(err)
		}
		for _, r := range got.Responses {
			version := store.Absent
			if kvs := r.GetResponseRange().Kvs; len(kvs) == 1 {
				_, version = stored(kvs[0])
			}
			versions = append(versions, version)
		}
	}
	return versions, nil
}

// List implements [store.Store].
func (s *Store) List(ctx context.Context, kind *objects.Kind, namespace string) ([]*objects.Object, store.Position, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	prefix := kindPrefix(kind)
	got, err := s.client.Txn(ctx).Then(
		clientv3.OpGet(prefix+specPart+below(namespace), clientv3.WithPrefix()), clientv3.OpGet(prefix+statusPart+below(namespace), clientv3.WithPrefix())).Commit()
	if err != nil {
		return nil, "", s.translate(err)
	}
	status := map[objects.Key]*mvccpb.KeyValue{}
	for _, kv := range got.Responses[1].GetResponseRange().Kvs {
		status[parseKey(string(kv.Key)).key] = kv
	}
	var all []*objects.Object
	for _, kv := range got.Responses[0].GetResponseRange().Kvs {
		o, err := s.decode(kv)
		if err != nil {
			return nil, "", err
		}
		if kv := status[o.Key()]; kv != nil {
			if err := withStatus(o, kv); err != nil {
				return nil, "", err
			}
		}
		all = append(all, o)
	}
	return all, position(got.Header.Revision), nil
}

// Write implements [store.Store].
func (s *Store) Write(ctx context.Context, w store.Write) (objects.Version, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	key := specKey(w.Key)
	s.writing.RLock()
	defer s.writing.RUnlock()
	var conditions []clientv3.Cmp
	switch {
	case w.IfVersion == store.Absent:
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", 0))
	case w.IfVersion != "":
		revision, err := strconv.ParseInt(string(w.IfVersion), 10, 64)
		if err != nil || revision <= 0 {
			return "", fmt.Errorf("%s: %q is no version of this store: %w", w.Key, w.IfVersion, store.ErrConflict)
		}
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", revision))
	}
	var changes []clientv3.Op
	var value []byte
	if w.Object == nil {
		if s.room != nil {
			if err := s.room(deletingBytes); err != nil {
				return "", err
			}
		}
		changes = append(changes, clientv3.OpDelete(key), clientv3.OpDelete(statusKey(w.Key)))
	} else {
		var err error
		if value, err = s.encode(w.Object); err != nil {
			return "", err
		}
		if err := s.hasRoom(len(value)); err != nil {
			return "", err
		}
		changes = append(changes, clientv3.OpPut(key, string(value)))
	}
	got, err := s.client.Txn(ctx).If(conditions...).Then(changes...).Else(clientv3.OpGet(key)).Commit()
	for range rotateAttempts {
		if err != nil || got.Succeeded {
			break
		}
		there := got.Responses[0].GetResponseRange().Kvs
		if len(there) == 0 {
			break
		}
		if _, v := stored(there[0]); v != w.IfVersion {
			break
		}
		// It is what the writer has read, sealed anew since.
		is := clientv3.Compare(clientv3.ModRevision(key), "=", there[0].ModRevision)
		got, err = s.client.Txn(ctx).If(is).Then(changes...).Else(clientv3.OpGet(key)).Commit()
	}
	if err != nil {
		revision, err := s.despite(ctx, err, key, string(value), w.IfVersion)
		if err != nil {
			return "", fmt.Errorf("%s: %w", w.Key, err)
		}
		return version(revision), nil
	}
	if !got.Succeeded {
		return "", fmt.Errorf("%s: %w", w.Key, store.ErrConflict)
	}
	if w.Object == nil {
		s.full.freed()
		return "", nil
	}
	return version(got.Header.Revision), nil
}

// SetStatus implements [store.Store].
func (s *Store) SetStatus(ctx context.Context, key objects.Key, status objects.Status, ifVersion objects.Version) (objects.Version, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	value, err := encodeStatus(status)
	if err != nil {
		return "", err
	}
	if err := s.hasRoom(len(value)); err != nil {
		return "", err
	}
	// Only while the object is there: a status must not outlive it.
	conditions := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(specKey(key)), ">", 0)}
	if ifVersion != "" {
		revision, err := strconv.ParseInt(string(ifVersion), 10, 64)
		if err != nil || revision < 0 {
			return "", fmt.Errorf("status of %s: %q is no version of this store: %w", key, ifVersion, store.ErrConflict)
		}
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(statusKey(key)), "=", revision))
	}
	got, err := s.client.Txn(ctx).If(conditions...).Then(clientv3.OpPut(statusKey(key), string(value))).
		Else(clientv3.OpGet(specKey(key), clientv3.WithCountOnly())).Commit()
	if err != nil {
		if ifVersion == noStatus {
			ifVersion = store.Absent
		}
		revision, err := s.despite(ctx, err, statusKey(key), string(value), ifVersion)
		if err != nil {
			return "", fmt.Errorf("status of %s: %w", key, err)
		}
		return version(revision), nil
	}
	switch {
	case got.Succeeded:
		return version(got.Header.Revision), nil
	case got.Responses[0].GetResponseRange().Count == 0:
		return "", fmt.Errorf("%s: %w", key, store.ErrNotFound)
	}
	return "", fmt.Errorf("status of %s: %w", key, store.ErrConflict)
}

func (s *Store) hasRoom(size int) error {
	if size > maxObjectBytes {
		return fmt.Errorf("%w: it has %d KiB, and the most is %d", store.ErrTooLarge, size>>10, maxObjectBytes>>10)
	}
	if s.room == nil {
		return nil
	}
	return s.room(reserveBytes)
}
