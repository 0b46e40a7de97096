package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/storetest"
)

func openKeys(t testing.TB, dir string) *seal.Ring {
	t.Helper()
	return keysOf(t, seal.Options{File: filepath.Join(dir, "secrets.key")})
}

func keysOf(t testing.TB, o seal.Options) *seal.Ring {
	t.Helper()
	keys, err := seal.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := OpenEmbedded(t.Context(), dir, openKeys(t, dir), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func decode(t *testing.T, manifest string) *objects.Object {
	t.Helper()
	objs, errs := objects.Decode(strings.NewReader(manifest), "test.yaml", "default")
	if len(errs) > 0 || len(objs) != 1 {
		t.Fatalf("%v, %v", objs, errs)
	}
	return objs[0]
}

func account(t *testing.T, name string) *objects.Object {
	t.Helper()
	return decode(t, fmt.Sprintf("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: shop}\n", name))
}

func put(o *objects.Object) store.Write { return store.Write{Key: o.Key(), Object: o} }

func TestEmbeddedKeepsTheContract(t *testing.T) {
	storetest.Run(t, subject(open(t, t.TempDir())))
}

// shared is a store that outlives who closes it.
type shared struct{ *Store }

func (shared) Close() error { return nil }

// What an interrupted writer of records left is no record, and goes.
func TestHalfARecordIsNone(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	if err := s.Records().Put(ctx, "whole", bytes.Repeat([]byte("x"), 2*pieceBytes), true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Put(ctx, pieceKey("half", "digest", 0), "x"); err != nil {
		t.Fatal(err)
	}
	all, _, err := s.Records().All(ctx)
	if err != nil || len(all) != 1 || len(all["whole"]) != 2*pieceBytes {
		t.Errorf("%d records, %v", len(all), err)
	}
	left, err := s.client.Get(ctx, recordsPrefix+"half", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || left.Count != 0 {
		t.Errorf("%d pieces are left, %v", left.Count, err)
	}
}

// Data of another layout is neither read nor touched.
func TestOtherFormatsAreRefused(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := OpenEmbedded(ctx, dir, openKeys(t, dir), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Put(ctx, formatKey, "99"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err := OpenEmbedded(ctx, dir, openKeys(t, dir), nil); err == nil || !strings.Contains(err.Error(), `"99"`) {
		t.Errorf("opened: %v", err)
		if err == nil {
			err = errors.Join(err, s.Close())
			t.Log(err)
		}
	}
}
