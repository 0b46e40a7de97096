package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/cache"
)

// A store whose quota is used up refuses writes in words that help, is read, and takes writes again after something was
// deleted, without a restart.
func TestFullStoreHasRoomAfterDeleting(t *testing.T) {
	s, err := openEmbedded(t.Context(), t.TempDir(), openKeys(t, t.TempDir()), nil, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	c, err := cache.Open(t.Context(), cache.Options{Store: s, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	large := func(n int) *objects.Object {
		o := account(t, fmt.Sprintf("a%d", n))
		text := make([]byte, 512<<10)
		for i := range text {
			text[i] = byte('a' + random.IntN(26))
		}
		o.SetAnnotations(map[string]string{"large": string(text)})
		return o
	}
	var full error
	written := 0
	for standing := false; !standing && written < 100; {
		if full = c.Apply(t.Context(), []store.Write{put(large(written))}); full == nil {
			written++
			continue
		}
		// The history of what was written may have been what filled it.
		var err error
		if standing, err = s.full.makeRoom(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !errors.Is(full, store.ErrFull) || !strings.Contains(full.Error(), "delete objects") {
		t.Fatalf("after %d objects: %v", written, full)
	}
	if all, _, err := c.List(t.Context(), objects.ServiceAccount, ""); err != nil || len(all) != written {
		t.Errorf("reading a full store: %d objects, %v", len(all), err)
	}
	// A batch is refused as a whole.
	if err := c.Apply(t.Context(), []store.Write{put(large(200)), put(large(201))}); !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrInterrupted) {
		t.Errorf("a batch: %v", err)
	}
	if n := c.Unfinished(); n != 0 {
		t.Errorf("%d batches wait for room", n)
	}
	// So many at once are a batch, which is not kept first because there is no room for that either.
	var deletions []store.Write
	for n := range written / 2 {
		deletions = append(deletions, store.Write{Key: large(n).Key()})
	}
	if err := c.Apply(t.Context(), deletions); err != nil {
		t.Fatalf("deleting from a full store: %v", err)
	}
	for started := time.Now(); ; {
		err := c.Apply(t.Context(), []store.Write{put(account(t, "after"))})
		if err == nil {
			break
		}
		if time.Since(started) > 30*time.Second || !errors.Is(err, store.ErrFull) {
			t.Fatalf("after deleting: %v", err)
		}
	}
	if all, _, err := c.List(t.Context(), objects.ServiceAccount, ""); err != nil || len(all) != written-written/2+1 {
		t.Errorf("%d objects, %v", len(all), err)
	}
}

// fullKV answers writes as etcd does when the last room is used up: some are made and refused with the same words.
type fullKV struct {
	clientv3.KV
	makes bool
}

func (kv fullKV) Txn(ctx context.Context) clientv3.Txn {
	return &fullTxn{Txn: kv.KV.Txn(ctx), makes: kv.makes}
}

func (kv fullKV) Put(ctx context.Context, key, value string, options ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	if kv.makes {
		if got, err := kv.KV.Put(ctx, key, value, options...); err != nil {
			return got, err
		}
	}
	return nil, rpctypes.ErrNoSpace
}

type fullTxn struct {
	clientv3.Txn
	makes bool
}

func (t *fullTxn) If(conditions ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(conditions...)
	return t
}

func (t *fullTxn) Then(changes ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Then(changes...)
	return t
}

func (t *fullTxn) Else(changes ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(changes...)
	return t
}

func (t *fullTxn) Commit() (*clientv3.TxnResponse, error) {
	if t.makes {
		if got, err := t.Txn.Commit(); err != nil {
			return got, err
		}
	}
	return nil, rpctypes.ErrNoSpace
}

// Whoever is told that the store is full was not heard: what etcd wrote and refused all the same is acknowledged.
func TestRefusedWritesWereNotMade(t *testing.T) {
	for _, makes := range []bool{true, false} {
		t.Run(fmt.Sprintf("made=%v", makes), func(t *testing.T) {
			s := open(t, t.TempDir())
			there, here := account(t, "there"), account(t, "here")
			before, err := s.Write(t.Context(), put(there))
			if err != nil {
				t.Fatal(err)
			}
			real := s.client.KV
			s.client.KV = fullKV{KV: real, makes: makes}
			changed := account(t, "there")
			changed.SetAnnotations(map[string]string{"changed": "yes"})
			created, createErr := s.Write(t.Context(), store.Write{Key: here.Key(), Object: here, IfVersion: store.Absent})
			_, changeErr := s.Write(t.Context(), store.Write{Key: there.Key(), Object: changed, IfVersion: before})
			_, statusErr := s.SetStatus(t.Context(), there.Key(), objects.Status{}, noStatus)
			recordErr := s.Records().Put(t.Context(), "r", []byte("content"), false)
			// Nobody else's write is taken for this one.
			_, conflictErr := s.Write(t.Context(), store.Write{Key: there.Key(), Object: there, IfVersion: "1"})
			s.client.KV = real
			for what, err := range map[string]error{"create": createErr, "change": changeErr, "status": statusErr, "record": recordErr} {
				if makes && err != nil || !makes && !errors.Is(err, store.ErrFull) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if !errors.Is(conflictErr, store.ErrFull) {
				t.Errorf("the version of another: %v", conflictErr)
			}
			got, err := s.Get(t.Context(), here.Key())
			if makes && (err != nil || got.Version != created) || !makes && !errors.Is(err, store.ErrNotFound) {
				t.Errorf("%v as version %q, %v", got, created, err)
			}
		})
	}
}
