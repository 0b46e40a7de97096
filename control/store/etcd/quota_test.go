package etcd

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

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
