package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
)

// kms writes a key management service's program.
func kms(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kms")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// A key management service that is slow has its own time: the limit on the store's first answers, which can be over by then,
// does not end it.
func TestTheFirstKeyHasATimeOfItsOwn(t *testing.T) {
	// The member runs already, so that opening is short; the keys are not there.
	before := open(t, t.TempDir())
	program := kms(t, `[ "$1" = wrap ] && [ ! -e "$0.done" ] && { echo > "$0.begun"; read -r _ < "$0.go"; : > "$0.done"; }
rev`)
	for _, name := range []string{".begun", ".go"} {
		if err := syscall.Mkfifo(program+name, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &Store{client: before.client, endpoints: before.endpoints, keys: keysOf(t, seal.Options{File: filepath.Join(t.TempDir(), "secrets.key"), Command: program})}
	if !s.keys.Empty() {
		t.Fatal("there is a key")
	}
	const limit = 2 * time.Second
	over := time.NewTimer(limit)
	opened := make(chan error, 1)
	go func() {
		_, err := s.opened(t.Context(), limit, nil)
		opened <- err
	}()
	begun := make(chan error, 1)
	go func() { _, err := os.ReadFile(program + ".begun"); begun <- err }()
	select {
	case err := <-opened:
		t.Fatalf("opened without the key, or not at all: %v", err)
	case err := <-begun:
		if err != nil {
			t.Fatal(err)
		}
	}
	<-over.C
	if err := os.WriteFile(program+".go", []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	if s.keys.Empty() {
		t.Error("there is no key")
	}
	write(t, s, secret(t, "one"))
	if all, _, err := s.List(t.Context(), objects.Secret, ""); err != nil || len(all) != 1 || all[0].Unreadable != "" {
		t.Errorf("%v %v", all, err)
	}
}

// Without a first key there is no store, and that it is the key's fault is said.
func TestWithoutAFirstKeyThereIsNoStore(t *testing.T) {
	keys := keysOf(t, seal.Options{File: filepath.Join(t.TempDir(), "secrets.key"), Command: kms(t, "exit 7")})
	if s, err := OpenEmbedded(t.Context(), t.TempDir(), keys, nil); !errors.Is(err, errFirstKey) {
		t.Errorf("%v", err)
		if s != nil {
			t.Error(s.Close())
		}
	}
}
