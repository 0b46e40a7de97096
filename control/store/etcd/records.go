package etcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
)

// A record lies in pieces, because etcd takes requests of 1.5 MiB by default: <name>/<digest>/<number>, and last, when all
// are there, <name>/head. Pieces without a head are what an interrupted write left. A record with the content of Secrets in
// it is sealed as a whole; one without lies there as it is, so that it neither needs a key nor keeps one.
const (
	recordsPrefix = root + "records/"
	pieceBytes    = 1 << 20
)

// head says what a record is made of.
type head struct {
	Pieces int    `json:"pieces"`
	Digest string `json:"digest"`
}

type records struct{ s *Store }

// Records implements [store.Store].
func (s *Store) Records() store.Records { return records{s} }

// Put implements [store.Records].
func (r records) Put(ctx context.Context, name string, content []byte, secret bool) error {
	ctx, cancel := r.s.bound(ctx)
	defer cancel()
	if len(content) > store.MaxRecordBytes {
		return fmt.Errorf("%w: record %s has %d MiB, and the most is %d", store.ErrTooLarge, name, len(content)>>20, store.MaxRecordBytes>>20)
	}
	if err := r.s.hasRoom(0); err != nil {
		return err
	}
	r.s.writing.RLock()
	defer r.s.writing.RUnlock()
	box := content
	// What looks sealed would be opened.
	if _, sealed := seal.KeyOf(content); secret || sealed {
		var err error
		if box, err = r.s.keys.Seal(content, "records/"+name); err != nil {
			return err
		}
	}
	digest := sha256.Sum256(box)
	h := head{Digest: hex.EncodeToString(digest[:])}
	for rest := box; len(rest) > 0; h.Pieces++ {
		piece := rest[:min(len(rest), pieceBytes)]
		rest = rest[len(piece):]
		if err := r.put(ctx, pieceKey(name, h.Digest, h.Pieces), string(piece)); err != nil {
			return err
		}
	}
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return r.put(ctx, recordsPrefix+name+"/head", string(text))
}

func (r records) put(ctx context.Context, key, value string) error {
	if _, err := r.s.client.Put(ctx, key, value); err != nil {
		_, err = r.s.despite(ctx, err, key, value, "")
		return err
	}
	return nil
}

func pieceKey(name, digest string, n int) string {
	return fmt.Sprintf("%s%s/%s/%06d", recordsPrefix, name, digest, n)
}

// All implements [store.Records].
func (r records) All(ctx context.Context) (read map[string][]byte, closed map[string]error, err error) {
	keys, err := r.s.client.Get(ctx, recordsPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, nil, r.s.translate(err)
	}
	whole, all := map[string]bool{}, map[string]bool{}
	for _, kv := range keys.Kvs {
		name, rest, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), recordsPrefix), "/")
		all[name] = true
		whole[name] = whole[name] || rest == "head"
	}
	read, closed = map[string][]byte{}, map[string]error{}
	for name := range all {
		if !whole[name] {
			if err := r.Delete(ctx, name); err != nil {
				return nil, nil, err
			}
			continue
		}
		content, err := r.read(ctx, name)
		switch {
		case errors.Is(err, seal.ErrClosed):
			closed[name] = fmt.Errorf("record %s: %w", name, err)
		case err != nil:
			return nil, nil, fmt.Errorf("record %s: %w", name, err)
		default:
			read[name] = content
		}
	}
	return read, closed, nil
}

// Get implements [store.Records].
func (r records) Get(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := r.s.bound(ctx)
	defer cancel()
	content, err := r.read(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("record %s: %w", name, err)
	}
	return content, nil
}

func (r records) read(ctx context.Context, name string) ([]byte, error) {
	place := "records/" + name
	got, err := r.s.client.Get(ctx, recordsPrefix+name+"/head")
	if err != nil {
		return nil, r.s.translate(err)
	}
	var h head
	if len(got.Kvs) != 1 {
		return nil, store.ErrNotFound
	}
	if err := json.Unmarshal(got.Kvs[0].Value, &h); err != nil {
		return nil, err
	}
	var box bytes.Buffer
	for n := range h.Pieces {
		got, err := r.s.client.Get(ctx, pieceKey(name, h.Digest, n))
		if err != nil {
			return nil, r.s.translate(err)
		}
		if len(got.Kvs) != 1 {
			return nil, fmt.Errorf("piece %d of %d is missing", n+1, h.Pieces)
		}
		piece := got.Kvs[0].Value
		if id, sealed := seal.KeyOf(piece); n == 0 && sealed && !r.opens(id) {
			// The others are not worth reading: a record that waits for its key is looked at often. The ring says why.
			_, err := r.s.keys.Open(piece, place)
			return nil, err
		}
		box.Write(piece)
	}
	digest := sha256.Sum256(box.Bytes())
	if hex.EncodeToString(digest[:]) != h.Digest {
		return nil, fmt.Errorf("its pieces do not fit together")
	}
	if _, sealed := seal.KeyOf(box.Bytes()); !sealed {
		return box.Bytes(), nil
	}
	return r.s.keys.Open(box.Bytes(), place)
}

// opens says whether a key can be used.
func (r records) opens(id string) bool {
	return slices.ContainsFunc(r.s.keys.Status().Keys, func(k seal.KeyStatus) bool { return k.ID == id && k.Problem == "" })
}

// keys are the ids of those that records are sealed with.
func (r records) keys(ctx context.Context) ([]string, error) {
	heads, err := r.s.client.Get(ctx, recordsPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, r.s.translate(err)
	}
	var ids []string
	for _, kv := range heads.Kvs {
		if !strings.HasSuffix(string(kv.Key), "/000000") {
			continue // A record's first piece says it.
		}
		got, err := r.s.client.Get(ctx, string(kv.Key))
		if err != nil {
			return nil, r.s.translate(err)
		}
		for _, piece := range got.Kvs {
			if id, sealed := seal.KeyOf(piece.Value); sealed {
				ids = append(ids, id)
			}
		}
	}
	return ids, nil
}

// Delete implements [store.Records]: the head goes first, so that half a record is none.
func (r records) Delete(ctx context.Context, name string) error {
	ctx, cancel := r.s.bound(ctx)
	defer cancel()
	if _, err := r.s.client.Delete(ctx, recordsPrefix+name+"/head"); err != nil {
		return r.s.translate(err)
	}
	if _, err := r.s.client.Delete(ctx, recordsPrefix+name+"/", clientv3.WithPrefix()); err != nil {
		return r.s.translate(err)
	}
	r.s.full.freed()
	return nil
}
