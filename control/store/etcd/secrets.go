package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
)

// secretsPage is how many Secrets are read at a time: each may have a mebibyte.
const secretsPage = 64

// claimKeys has the keys kept for an external store, which outlives the cluster's data on this machine. Members come and go;
// the cluster of members has an identifier.
func (s *Store) claimKeys(ctx context.Context) error {
	if s.prefix == "" {
		return nil
	}
	got, err := s.client.Get(ctx, formatKey, clientv3.WithCountOnly())
	if err != nil {
		return s.translate(err)
	}
	return s.keys.Claim(fmt.Sprintf("etcd %x%s", got.Header.ClusterId, s.prefix))
}

// wantsFirstKey says that a first key is to be made: there is none, and the store holds nothing that is sealed, Secrets or
// records. Otherwise its key must have been lost, and is not to be replaced without a word.
func (s *Store) wantsFirstKey(ctx context.Context) (bool, error) {
	if !s.keys.Empty() {
		return false, nil
	}
	lost := false
	if err := s.eachSecret(ctx, func(kv *mvccpb.KeyValue) error {
		record, _ := stored(kv)
		_, sealed := seal.KeyOf(record)
		lost = lost || sealed
		return nil
	}); err != nil || lost {
		return false, err
	}
	ids, err := records{s}.keys(ctx)
	return len(ids) == 0, err
}

// eachSecret reads all Secrets as they are stored.
func (s *Store) eachSecret(ctx context.Context, do func(*mvccpb.KeyValue) error) error {
	prefix := kindPrefix(objects.Secret) + specPart
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		got, err := s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(secretsPage))
		if err != nil {
			return s.translate(err)
		}
		for _, kv := range got.Kvs {
			if err := do(kv); err != nil {
				return err
			}
		}
		if !got.More {
			return nil
		}
		from = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
}

// ReloadKeys implements [store.Sealing].
func (s *Store) ReloadKeys(ctx context.Context) (bool, error) { return s.keys.Reload(ctx) }

// RotateSecrets implements [store.Sealing]. A key is on the disk before it seals anything, and forgotten only when nothing
// names it any more; so it may end anywhere, and the next one goes on from there.
func (s *Store) RotateSecrets(ctx context.Context, anew bool) (seal.Status, error) {
	s.rotating.Lock()
	defer s.rotating.Unlock()
	fail := func(err error) (seal.Status, error) { return seal.Status{}, err }
	// As others may have left the file.
	if _, err := s.keys.Reload(ctx); err != nil {
		return fail(err)
	}
	left, err := s.toReseal(ctx)
	if err != nil {
		return fail(err)
	}
	if anew && (len(left) == 0 || !s.keys.Usable() || !s.keys.Several()) {
		if err := s.keys.Add(ctx); err != nil {
			return fail(err)
		}
	}
	s.written()
	if left, err = s.toReseal(ctx); err != nil {
		return fail(err)
	}
	if err := s.resealAll(ctx, left); err != nil {
		return fail(err)
	}
	if err := s.forgetHistory(ctx); err != nil {
		return fail(err)
	}
	// Read once more, and not from what is remembered: a key that is forgotten cannot be had again.
	named := map[string]bool{}
	if err := s.eachSecret(ctx, func(kv *mvccpb.KeyValue) error {
		record, _ := stored(kv)
		if id, sealed := seal.KeyOf(record); sealed {
			named[id] = true
		}
		return nil
	}); err != nil {
		return fail(err)
	}
	// Records of batches are short-lived: their key stays until a rotation that finds none.
	ids, err := records{s}.keys(ctx)
	if err != nil {
		return fail(err)
	}
	for id := range named {
		ids = append(ids, id)
	}
	if err := s.keys.Retain(ids...); err != nil {
		return fail(err)
	}
	return s.SecretsStatus(ctx)
}

// written returns once all writes of before are at their end.
func (s *Store) written() {
	s.writing.Lock()
	defer s.writing.Unlock()
}

// forgetHistory drops the revisions before now, which hold Secrets as they were sealed, and the room they took in the
// database. Whoever watches from before lists anew.
func (s *Store) forgetHistory(ctx context.Context) error {
	got, err := s.client.Get(ctx, root, clientv3.WithCountOnly(), clientv3.WithPrefix())
	if err != nil {
		return s.translate(err)
	}
	if _, err := s.client.Compact(ctx, got.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		if err = s.translate(err); !errors.Is(err, store.ErrExpired) {
			return err
		}
	}
	for _, endpoint := range s.endpoints {
		if err := s.defragment(ctx, endpoint); err != nil {
			return fmt.Errorf("%w: rewrite the database: %w", store.ErrUnavailable, err)
		}
	}
	return nil
}
