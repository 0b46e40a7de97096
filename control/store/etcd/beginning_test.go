package etcd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"heddle.io/heddle/control/objects"
)

// What a first start leaves that did not come to its end is made anew; a store that was ready once keeps what it has.
func TestAFirstStartThatDidNotEndIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	b := newBeginning(dir, filepath.Join(dir, "etcd"))
	if err := b.prepare(); err != nil {
		t.Fatal(err)
	}
	// What etcd makes first: a log without a record.
	log := filepath.Join(b.data, "member", "wal", "0000000000000000-0000000000000000.wal")
	if err := errors.Join(os.MkdirAll(filepath.Dir(log), 0o700), os.WriteFile(log, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	keys := openKeys(t, dir)
	kept := generationObject("kept", 1)
	for start := range 3 {
		s, err := OpenEmbedded(t.Context(), dir, keys, nil)
		if err != nil {
			t.Fatalf("start %d: %v", start, err)
		}
		if _, err := os.Stat(b.mark); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("start %d: the mark is there while the store is open: %v", start, err)
		}
		if start == 0 {
			if _, err := s.Write(t.Context(), put(kept)); err != nil {
				t.Error(err)
			}
		} else if all, _, err := s.List(t.Context(), objects.ServiceAccount, ""); err != nil || len(all) != 1 {
			t.Errorf("start %d: %d objects, %v", start, len(all), err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
