package etcd

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"heddle.io/heddle/control/seal"
)

// Records with Secrets that were sealed with a key that is lost keep no other record from being read or written, and the
// key from being replaced without a word.
func TestRecordsUnderALostKey(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "secrets.key")
	s, ctx := open(t, dir), t.Context()
	r, large := s.Records(), bytes.Repeat([]byte("x"), 2*pieceBytes)
	if err := r.Put(ctx, "sealed", large, true); err != nil {
		t.Fatal(err)
	}
	if err := r.Put(ctx, "plain", large, false); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	// As a controller that starts now.
	s.keys = openKeys(t, dir)
	if first, err := s.wantsFirstKey(ctx); err != nil || first {
		t.Errorf("a lost key would be replaced: %v", err)
	}
	read, closed, err := r.All(ctx)
	if err != nil || len(read) != 1 || !bytes.Equal(read["plain"], large) || len(closed) != 1 || !errors.Is(closed["sealed"], seal.ErrClosed) {
		t.Errorf("%d read, closed: %v, %v", len(read), closed, err)
	}
	if _, err := r.Get(ctx, "sealed"); !errors.Is(err, seal.ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := r.Put(ctx, "without", []byte("{}"), false); err != nil {
		t.Errorf("a record without Secrets: %v", err)
	}
	if err := r.Put(ctx, "with", []byte("{}"), true); !errors.Is(err, seal.ErrNoKey) {
		t.Errorf("a record with Secrets: %v", err)
	}
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	if changed, err := s.ReloadKeys(ctx); err != nil || !changed {
		t.Fatal(changed, err)
	}
	if got, err := r.Get(ctx, "sealed"); err != nil || !bytes.Equal(got, large) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// A record without Secrets keeps no key from being forgotten; one with Secrets does.
func TestRotationWithRecords(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	if err := s.Records().Put(ctx, "plain", []byte("{}"), false); err != nil {
		t.Fatal(err)
	}
	if status, err := s.RotateSecrets(ctx, true); err != nil || len(status.Keys) != 1 {
		t.Errorf("%+v %v", status, err)
	}
	// What only looks sealed is.
	if err := s.Records().Put(ctx, "odd", []byte("sealed:one:two"), false); err != nil {
		t.Fatal(err)
	}
	if status, err := s.RotateSecrets(ctx, true); err != nil || len(status.Keys) != 2 {
		t.Errorf("%+v %v", status, err)
	}
	if got, err := s.Records().Get(ctx, "odd"); err != nil || string(got) != "sealed:one:two" {
		t.Errorf("%q %v", got, err)
	}
}
