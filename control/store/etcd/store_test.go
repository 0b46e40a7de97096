package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
)

func openKeys(t *testing.T, dir string) *seal.Ring {
	t.Helper()
	keys, err := seal.Open(t.Context(), seal.Options{File: filepath.Join(dir, "secrets.key")})
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

func TestWritesAreWholeAndConditional(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	a, b := account(t, "a"), account(t, "b")
	revision, err := s.Apply(ctx, []store.Write{put(a), put(b)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(ctx, a.Key())
	if err != nil {
		t.Fatal(err)
	}
	if got.Revision != revision || got.Origin.File != "test.yaml" {
		t.Errorf("got revision %d and origin %v", got.Revision, got.Origin)
	}
	// One condition that does not hold undoes the whole batch.
	_, err = s.Apply(ctx, []store.Write{{Key: a.Key()}, {Key: b.Key(), Object: b, IfRevision: revision + 7}})
	if !errors.Is(err, store.ErrConflict) {
		t.Errorf("got %v, want a conflict", err)
	}
	if _, err := s.Apply(ctx, []store.Write{{Key: b.Key(), Object: b, IfRevision: -1}}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("creating what exists: got %v, want a conflict", err)
	}
	all, _, err := s.List(ctx, a.Kind, "shop")
	if err != nil || len(all) != 2 {
		t.Errorf("list: %v, %v", all, err)
	}
	if all, _, err := s.List(ctx, a.Kind, "sho"); err != nil || len(all) != 0 {
		t.Errorf("list of a namespace whose name is a prefix: %v, %v", all, err)
	}
	if _, err := s.Get(ctx, objects.Key{Kind: "ServiceAccount", Namespace: "shop", Name: "none"}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("got %v, want not found", err)
	}
}

func TestStatusLeavesTheRevisionAlone(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	a := account(t, "a")
	revision, err := s.Apply(ctx, []store.Write{put(a)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetStatus(ctx, a.Key(), objects.Status{Proxies: 3}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(ctx, a.Key())
	if err != nil {
		t.Fatal(err)
	}
	if got.Revision != revision || got.Status.Proxies != 3 {
		t.Errorf("revision %d, status %+v", got.Revision, got.Status)
	}
	missing := objects.Key{Kind: "ServiceAccount", Namespace: "shop", Name: "none"}
	if err := s.SetStatus(ctx, missing, objects.Status{}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("status of nothing: %v", err)
	}
}

func TestWatchSendsBatchesInOrder(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	a, b := account(t, "a"), account(t, "b")
	start, err := s.Apply(ctx, []store.Write{put(a)})
	if err != nil {
		t.Fatal(err)
	}
	watching, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	events, failure := s.Watch(watching, start)
	if _, err := s.Apply(ctx, []store.Write{{Key: a.Key()}, put(b)}); err != nil {
		t.Fatal(err)
	}
	if err := s.SetStatus(ctx, b.Key(), objects.Status{Proxies: 1}); err != nil {
		t.Fatal(err)
	}
	first, second := <-events, <-events
	if len(first) != 2 || first[0].Object != nil || first[0].Key != a.Key() || first[1].Object == nil || first[1].StatusOnly {
		t.Errorf("first batch: %+v", first)
	}
	if len(second) != 1 || !second[0].StatusOnly || second[0].Object.Status.Proxies != 1 {
		t.Errorf("second batch: %+v", second)
	}
	stop()
	if _, open := <-events; open {
		t.Error("an event after the end")
	}
	if err := failure(); err != nil {
		t.Error(err)
	}
}

func TestWatchSaysWhenItsRevisionIsGone(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	a := account(t, "a")
	var revision int64
	for range 3 {
		var err error
		if revision, err = s.Apply(ctx, []store.Write{put(a)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.client.Compact(ctx, revision); err != nil {
		t.Fatal(err)
	}
	events, failure := s.Watch(ctx, 0)
	for range events {
		t.Error("an event of a revision that is gone")
	}
	if err := failure(); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("got %v", err)
	}
}

// TestKilledWriterLosesNothing kills a process in the middle of its writes and counts what it had acknowledged.
func TestKilledWriterLosesNothing(t *testing.T) {
	const child = "HEDDLE_TEST_STORE_WRITER"
	if dir := os.Getenv(child); dir != "" {
		s, err := OpenEmbedded(t.Context(), dir, openKeys(t, dir), nil)
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; ; n++ {
			if _, err := s.Apply(t.Context(), []store.Write{put(account(t, fmt.Sprintf("a%d", n)))}); err != nil {
				t.Fatal(err)
			}
			fmt.Printf("wrote %d\n", n)
		}
	}
	dir := t.TempDir()
	writer := exec.Command(os.Args[0], "-test.run=^TestKilledWriterLosesNothing$", "-test.v")
	writer.Env = append(os.Environ(), child+"="+dir)
	out, err := writer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	acknowledged, buffer := "", make([]byte, 4096)
	for !strings.Contains(acknowledged, "wrote 20\n") {
		n, err := out.Read(buffer)
		acknowledged += string(buffer[:n])
		if err != nil {
			t.Fatalf("the writer ended: %v\n%s", err, acknowledged)
		}
	}
	if err := writer.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := out.Read(buffer)
		acknowledged += string(buffer[:n])
		if err != nil {
			break
		}
	}
	if err := writer.Wait(); err == nil {
		t.Fatal("the writer was not killed")
	}
	s := open(t, dir)
	count := strings.Count(acknowledged, "wrote ")
	for n := range count {
		if _, err := s.Get(t.Context(), account(t, fmt.Sprintf("a%d", n)).Key()); err != nil {
			t.Errorf("acknowledged and lost: %v", err)
		}
	}
	t.Logf("%d acknowledged writes survived", count)
}
