package etcd

import (
	"context"
	"maps"
	"slices"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
)

// looked is what was found out about Secrets as they are stored: any viewer may ask, as often as they like, and the
// controller does while one cannot be decrypted. A record is opened once for each of its revisions; there are as many entries
// as Secrets.
type looked struct {
	// mu is held while the store is looked through, so that who asks at the same time shares one look.
	mu sync.Mutex
	// revision of the store, and versions of the keys ([seal.Ring.Versions]), that the entries are of.
	revision int64
	keys     map[string]uint64
	secrets  map[string]look
	// opened counts the records that were looked into.
	opened uint64
}

// look is what is known of one Secret's record.
type look struct {
	revision int64
	// with is the key that sealed it, empty for none, and key its version; why it does not open, empty if it does.
	with string
	key  uint64
	why  string
}

// keysPage is how many keys of Secrets are listed at a time.
const keysPage = 1000

// resealed remembers a record that was just written.
func (l *looked) resealed(one resealing, revision int64, keys map[string]uint64) {
	record, _ := stored(&mvccpb.KeyValue{Value: one.value, ModRevision: revision})
	with, _ := seal.KeyOf(record)
	version := keys[with]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.secrets != nil {
		l.secrets[one.key] = look{revision: revision, with: with, key: version}
	}
}

// look gives what is known of all Secrets, by their keys in the store; of those that nobody wrote since the last time, it is
// remembered. The answer is the caller's.
func (s *Store) look(ctx context.Context) (map[string]look, error) {
	l := &s.looked
	l.mu.Lock()
	defer l.mu.Unlock()
	prefix := kindPrefix(objects.Secret) + specPart
	now, err := s.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return nil, s.translate(err)
	}
	// Before the look: what changes meanwhile is looked at again.
	revision, keys := now.Header.Revision, s.keys.Versions()
	switch {
	case revision < l.revision:
		l.secrets = nil // A store that was put back has other records.
	case l.secrets != nil && revision == l.revision && maps.Equal(keys, l.keys):
		return maps.Clone(l.secrets), nil
	}
	secrets, err := s.lookAt(ctx, prefix, keys)
	if err != nil {
		return nil, err
	}
	l.revision, l.keys, l.secrets = revision, keys, secrets
	return maps.Clone(secrets), nil
}

// lookAt looks through the store, and opens the records that are not known as they are, by the keys as they are.
func (s *Store) lookAt(ctx context.Context, prefix string, keys map[string]uint64) (map[string]look, error) {
	known := s.looked.secrets
	secrets := make(map[string]look, len(known))
	var unknown []string
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		got, err := s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(keysPage), clientv3.WithKeysOnly())
		if err != nil {
			return nil, s.translate(err)
		}
		for _, kv := range got.Kvs {
			if at, ok := known[string(kv.Key)]; ok && at.revision == kv.ModRevision && at.key == keys[at.with] {
				secrets[string(kv.Key)] = at
			} else {
				unknown = append(unknown, string(kv.Key))
			}
		}
		if !got.More {
			break
		}
		from = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
	for page := range slices.Chunk(unknown, secretsPage) {
		read, err := s.read(ctx, page)
		if err != nil {
			return nil, err
		}
		for _, kv := range read {
			secrets[string(kv.Key)] = s.lookInto(kv, keys)
		}
	}
	return secrets, nil
}

func (s *Store) lookInto(kv *mvccpb.KeyValue, keys map[string]uint64) look {
	at := look{revision: kv.ModRevision}
	record, _ := stored(kv)
	id, sealed := seal.KeyOf(record)
	if !sealed {
		return at
	}
	at.with, at.key = id, keys[id]
	s.looked.opened++
	if _, err := s.keys.Open(record, path(parseKey(string(kv.Key)).key)); err != nil {
		at.why = err.Error()
	}
	return at
}

// SecretsStatus implements [store.Sealing].
func (s *Store) SecretsStatus(ctx context.Context) (seal.Status, error) {
	secrets, err := s.look(ctx)
	status := s.keys.Status()
	with := map[string]int{}
	var unreadable []string
	for key, at := range secrets {
		switch {
		case at.with == "" && at.why == "":
			status.Unsealed++
		default:
			with[at.with]++
		}
		if at.why != "" {
			unreadable = append(unreadable, key)
		}
	}
	status.Secrets = len(secrets)
	slices.Sort(unreadable)
	for _, key := range unreadable {
		status.Unreadable = append(status.Unreadable, seal.Unreadable{Secret: parseKey(key).key.String(), Why: secrets[key].why})
	}
	for i := range status.Keys {
		status.Keys[i].Secrets = with[status.Keys[i].ID]
	}
	return status, err
}

// toReseal are the keys of the Secrets that can be read and are not sealed with the primary key, sorted.
func (s *Store) toReseal(ctx context.Context) ([]string, error) {
	secrets, err := s.look(ctx)
	primary := s.keys.Primary()
	var left []string
	for key, at := range secrets {
		// What cannot be read stays as it is, and the status says so.
		if at.why == "" && at.with != primary {
			left = append(left, key)
		}
	}
	slices.Sort(left)
	return left, err
}
