package etcd

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
)

// resealBytes is how much one transaction writes, unless one Secret alone is larger: etcd takes requests of 1.5 MiB by default,
// and of 128 operations, of which there are [secretsPage] at the most.
const resealBytes = 1 << 20

// rotateAttempts is how often a Secret is read again that somebody writes at the same time. What they write is sealed with
// the new key by itself.
const rotateAttempts = 5

// resealAll writes Secrets anew, with the primary key, many in one transaction: each is a wait for the disk.
func (s *Store) resealAll(ctx context.Context, keys []string) error {
	for len(keys) > 0 {
		page := keys[:min(secretsPage, len(keys))]
		keys = keys[len(page):]
		read, err := s.read(ctx, page)
		if err != nil {
			return err
		}
		var batch []resealing
		size := 0
		for _, kv := range read {
			one, needed, err := s.resealed(kv)
			if err != nil {
				return err
			}
			if !needed {
				continue
			}
			if len(batch) > 0 && size+len(one.value) > resealBytes {
				if err := s.write(ctx, batch); err != nil {
					return err
				}
				batch, size = nil, 0
			}
			batch, size = append(batch, one), size+len(one.value)
		}
		if len(batch) > 0 {
			if err := s.write(ctx, batch); err != nil {
				return err
			}
		}
	}
	return nil
}

// resealing is a Secret as it is to be written.
type resealing struct {
	key string
	// revision of the record that it was read from.
	revision int64
	value    []byte
}

// read gives the records of Secrets that are there, in one transaction.
func (s *Store) read(ctx context.Context, keys []string) ([]*mvccpb.KeyValue, error) {
	gets := make([]clientv3.Op, 0, len(keys))
	for _, key := range keys {
		gets = append(gets, clientv3.OpGet(key))
	}
	got, err := s.client.Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return nil, s.translate(err)
	}
	var all []*mvccpb.KeyValue
	for _, response := range got.Responses {
		all = append(all, response.GetResponseRange().GetKvs()...)
	}
	return all, nil
}

// resealed is a record as the primary key seals it, unless that key has. Its version stays: nobody who has read it finds it
// changed, a batch that is under way least of all.
func (s *Store) resealed(kv *mvccpb.KeyValue) (one resealing, needed bool, err error) {
	object := parseKey(string(kv.Key)).key
	place := path(object)
	value, version := stored(kv)
	if id, sealed := seal.KeyOf(value); sealed {
		if id == s.keys.Primary() {
			return one, false, nil
		}
		if value, err = s.keys.Open(value, place); err != nil {
			return one, false, fmt.Errorf("%s: %w", object, err)
		}
	}
	if value, err = s.keys.Seal(value, place); err != nil {
		return one, false, err
	}
	return resealing{key: string(kv.Key), revision: kv.ModRevision, value: withVersion(value, version)}, true, nil
}

// write makes a batch durable. What somebody writes at the same time is tried again, one by one.
func (s *Store) write(ctx context.Context, batch []resealing) error {
	done, err := s.tryWrite(ctx, batch...)
	if err != nil || done {
		return err
	}
	for _, one := range batch {
		if err := s.reseal(ctx, one.key); err != nil {
			return err
		}
	}
	return nil
}

// tryWrite says whether nobody had written one of the batch since it was read; otherwise it writes none.
func (s *Store) tryWrite(ctx context.Context, batch ...resealing) (bool, error) {
	size := 0
	var same []clientv3.Cmp
	var puts []clientv3.Op
	for _, one := range batch {
		size += len(one.value)
		same = append(same, clientv3.Compare(clientv3.ModRevision(one.key), "=", one.revision))
		puts = append(puts, clientv3.OpPut(one.key, string(one.value)))
	}
	if err := s.hasRoom(size); err != nil {
		return false, err
	}
	done, err := s.client.Txn(ctx).If(same...).Then(puts...).Commit()
	if err != nil {
		return false, s.translate(err)
	}
	if done.Succeeded {
		keys := s.keys.Versions()
		for _, one := range batch {
			s.looked.resealed(one, done.Header.Revision, keys)
		}
	}
	return done.Succeeded, nil
}

// reseal writes one Secret anew that others write too.
func (s *Store) reseal(ctx context.Context, key string) error {
	for range rotateAttempts {
		read, err := s.read(ctx, []string{key})
		if err != nil || len(read) == 0 {
			return err // Deleted meanwhile, perhaps.
		}
		one, needed, err := s.resealed(read[0])
		if err != nil || !needed {
			return err
		}
		if done, err := s.tryWrite(ctx, one); err != nil || done {
			return err
		}
	}
	return fmt.Errorf("%s: %w; run `heddle secrets rotate` again", parseKey(key).key, store.ErrConflict)
}
