package lock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestLockIsHeldByOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "lock")
	first, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Take(path); !errors.Is(err, ErrHeld) {
		t.Fatal(err)
	}
	if _, err := Wait(path, time.Millisecond); !errors.Is(err, ErrHeld) {
		t.Fatal(err)
	}
	// Whoever waits gets it when it is released, and when its file is removed meanwhile.
	for _, release := range []func() error{func() error { first.Close(); return nil }, func() error { return first.Remove() }} {
		got := make(chan *File, 1)
		go func() {
			f, err := Wait(path, 10*time.Second)
			if err != nil {
				t.Error(err)
			}
			got <- f
		}()
		if err := release(); err != nil {
			t.Fatal(err)
		}
		if first = <-got; first == nil {
			t.Fatal("not taken")
		}
		if _, err := Take(path); !errors.Is(err, ErrHeld) {
			t.Fatal(err)
		}
	}
	if err := first.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("the file is left")
	}
}
