package etcd

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// Export implements [store.Store]. All kinds are read at one revision.
func (s *Store) Export(ctx context.Context, f func(store.Exported) error) error {
	var revision int64
	for _, kind := range objects.Kinds {
		got, err := s.client.Get(ctx, kindPrefix(kind)+specPart, clientv3.WithPrefix(), clientv3.WithRev(revision))
		if err != nil {
			return s.translate(err)
		}
		if revision == 0 {
			revision = got.Header.Revision
		}
		for _, kv := range got.Kvs {
			record, _ := stored(kv)
			if err := f(store.Exported{Key: parseKey(string(kv.Key)).key, Content: record}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Import implements [store.Store].
func (s *Store) Import(e store.Exported) (*objects.Object, error) {
	o, err := s.decode(&mvccpb.KeyValue{Key: []byte(specKey(e.Key)), Value: e.Content})
	if err != nil {
		return nil, err
	}
	if o.Unreadable != "" {
		return nil, fmt.Errorf("%s: %s", e.Key, o.Unreadable)
	}
	if o.Key() != e.Key {
		return nil, fmt.Errorf("%s holds %s", e.Key, o.Key())
	}
	o.Version, o.StatusVersion = "", ""
	return o, nil
}
