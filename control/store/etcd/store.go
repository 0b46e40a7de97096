package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
)

// An object lies under specs, its status under statuses with the same ending, so that a status never changes the
// object's revision.
const (
	specs    = "/heddle/objects/"
	statuses = "/heddle/statuses/"
)

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
	// defragment rewrites the database without what is no longer in it.
	defragment func(ctx context.Context) error
	// room says why the disk has no space for a write; nil without an embedded member.
	room func() error
}

var (
	_ store.Store   = (*Store)(nil)
	_ store.Sealing = (*Store)(nil)
)

// Close ends the store and the embedded member.
func (s *Store) Close() error {
	err := s.client.Close()
	if s.stop != nil {
		s.stop()
	}
	if errors.Is(err, context.Canceled) {
		return nil // The in-process client's way to say that it is closed.
	}
	return err
}

// path is the end of an object's two keys. No part can hold a slash: names are DNS names.
func path(key objects.Key) string {
	group, namespace := key.Group, key.Namespace
	if group == "" {
		group = "core"
	}
	if namespace == "" {
		namespace = "_"
	}
	return group + "/" + key.Kind + "/" + namespace + "/" + key.Name
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, key objects.Key) (*objects.Object, error) {
	return s.at(ctx, path(key), 0)
}

// at reads an object and its status as of one revision; zero means now.
func (s *Store) at(ctx context.Context, path string, revision int64) (*objects.Object, error) {
	got, err := s.client.Txn(ctx).Then(
		clientv3.OpGet(specs+path, clientv3.WithRev(revision)), clientv3.OpGet(statuses+path, clientv3.WithRev(revision))).Commit()
	if err != nil {
		return nil, translate(err)
	}
	spec, status := got.Responses[0].GetResponseRange().Kvs, got.Responses[1].GetResponseRange().Kvs
	if len(spec) == 0 {
		return nil, fmt.Errorf("%s: %w", path, store.ErrNotFound)
	}
	o, err := s.decode(spec[0])
	if err != nil {
		return nil, err
	}
	if len(status) == 1 {
		o.Status, err = decodeStatus(status[0])
	}
	return o, err
}

// List implements [store.Store].
func (s *Store) List(ctx context.Context, kind *objects.Kind, namespace string) ([]*objects.Object, int64, error) {
	prefix := ""
	if kind != nil {
		prefix = path(objects.Key{Group: kind.Group, Kind: kind.Kind, Namespace: namespace})
		if namespace == "" {
			prefix = strings.TrimSuffix(prefix, "_/")
		}
	}
	got, err := s.client.Txn(ctx).Then(
		clientv3.OpGet(specs+prefix, clientv3.WithPrefix()), clientv3.OpGet(statuses+prefix, clientv3.WithPrefix())).Commit()
	if err != nil {
		return nil, 0, translate(err)
	}
	status := map[string]*mvccpb.KeyValue{}
	for _, kv := range got.Responses[1].GetResponseRange().Kvs {
		status[strings.TrimPrefix(string(kv.Key), statuses)] = kv
	}
	var all []*objects.Object
	for _, kv := range got.Responses[0].GetResponseRange().Kvs {
		o, err := s.decode(kv)
		if err != nil {
			return nil, 0, err
		}
		if kind == nil && namespace != "" && o.GetNamespace() != namespace {
			continue
		}
		if kv := status[strings.TrimPrefix(string(kv.Key), specs)]; kv != nil {
			if o.Status, err = decodeStatus(kv); err != nil {
				return nil, 0, err
			}
		}
		all = append(all, o)
	}
	return all, got.Header.Revision, nil
}

// Apply implements [store.Store].
func (s *Store) Apply(ctx context.Context, writes []store.Write) (int64, error) {
	if len(writes) > maxBatch {
		return 0, fmt.Errorf("%d objects in one write: the most is %d; apply them in parts", len(writes), maxBatch)
	}
	if err := s.hasRoom(); err != nil {
		return 0, err
	}
	s.writing.RLock()
	defer s.writing.RUnlock()
	var conditions []clientv3.Cmp
	var changes []clientv3.Op
	for _, w := range writes {
		key := specs + path(w.Key)
		switch {
		case w.IfRevision > 0:
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", w.IfRevision))
		case w.IfRevision < 0:
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", 0))
		}
		if w.Object == nil {
			changes = append(changes, clientv3.OpDelete(key), clientv3.OpDelete(statuses+path(w.Key)))
			continue
		}
		value, err := s.encode(w.Object)
		if err != nil {
			return 0, err
		}
		changes = append(changes, clientv3.OpPut(key, string(value)))
	}
	got, err := s.client.Txn(ctx).If(conditions...).Then(changes...).Commit()
	if err != nil {
		return 0, translate(err)
	}
	if !got.Succeeded {
		return 0, store.ErrConflict
	}
	return got.Header.Revision, nil
}

// SetStatus implements [store.Store].
func (s *Store) SetStatus(ctx context.Context, key objects.Key, status objects.Status) error {
	value, err := encodeStatus(status)
	if err != nil {
		return err
	}
	if err := s.hasRoom(); err != nil {
		return err
	}
	// Only while the object is there: a status must not outlive it.
	got, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(specs+path(key)), ">", 0)).
		Then(clientv3.OpPut(statuses+path(key), string(value))).Commit()
	if err != nil {
		return translate(err)
	}
	if !got.Succeeded {
		return fmt.Errorf("%s: %w", key, store.ErrNotFound)
	}
	return nil
}

func (s *Store) hasRoom() error {
	if s.room == nil {
		return nil
	}
	return s.room()
}

// translate gives etcd's errors the store's names.
func translate(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, rpctypes.ErrCompacted):
		return store.ErrCompacted
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: the store is full (%d MiB): delete objects that are not needed, then restart the controller", store.ErrUnavailable, quotaBytes>>20)
	case slices.ContainsFunc([]error{rpctypes.ErrRequestTooLarge, rpctypes.ErrTooManyOps}, func(known error) bool { return errors.Is(err, known) }):
		return fmt.Errorf("the write is larger than %d MiB: apply the objects in parts: %w", maxRequestBytes>>20, err)
	default:
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
}
