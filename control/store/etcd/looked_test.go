package etcd

import (
	"fmt"
	"testing"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
)

// Whoever asks for the status, and however often, has a record opened once: again only when it, or its key, is another.
func TestSecretsAreLookedIntoOnce(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	const n = 2*secretsPage + 1
	for i := range n {
		write(t, s, secret(t, fmt.Sprint("s", i)))
	}
	opened := func(want uint64, secrets int, why string) {
		t.Helper()
		before := s.looked.opened
		for range 5 {
			status, err := s.SecretsStatus(ctx)
			if err != nil || status.Secrets != secrets || len(status.Unreadable) > 0 {
				t.Fatalf("%s: %+v %v", why, status, err)
			}
			for _, k := range status.Keys {
				if k.Primary && k.Secrets != secrets {
					t.Fatalf("%s: %d with the primary key", why, k.Secrets)
				}
			}
		}
		if got := s.looked.opened - before; got != want {
			t.Errorf("%s: %d records were opened, want %d", why, got, want)
		}
	}
	opened(n, n, "the first time")
	write(t, s, secret(t, "s7"))
	opened(1, n, "one was written")
	if _, err := s.Write(ctx, store.Write{Key: secret(t, "s7").Key()}); err != nil {
		t.Fatal(err)
	}
	opened(0, n-1, "one was deleted")
	if _, err := s.ReloadKeys(ctx); err != nil {
		t.Fatal(err)
	}
	opened(0, n-1, "the keys were read again, and are the same")
	if _, err := s.RotateSecrets(ctx, true); err != nil {
		t.Fatal(err)
	}
	opened(0, n-1, "all were written anew here")
}

// A batch of which one was written meanwhile is made one by one, and nobody's word is lost.
func TestBatchThatSomebodyWritesInto(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	var keys []string
	for i := range 5 {
		o := secret(t, fmt.Sprint("s", i))
		write(t, s, o)
		keys = append(keys, specKey(o.Key()))
	}
	if err := s.keys.Add(ctx); err != nil {
		t.Fatal(err)
	}
	read, err := s.read(ctx, keys)
	if err != nil {
		t.Fatal(err)
	}
	var batch []resealing
	for _, kv := range read {
		one, needed, err := s.resealed(kv)
		if err != nil || !needed {
			t.Fatal(needed, err)
		}
		batch = append(batch, one)
	}
	changed := secret(t, "s1")
	changed.SetLabels(map[string]string{"changed": "meanwhile"})
	write(t, s, changed)
	if _, err := s.Write(ctx, store.Write{Key: secret(t, "s2").Key()}); err != nil {
		t.Fatal(err)
	}
	if err := s.write(ctx, batch); err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		read, err := s.read(ctx, []string{key})
		if err != nil || len(read) == 1 != (i != 2) {
			t.Fatal(i, len(read), err)
		}
		if i == 2 {
			continue
		}
		value, _ := stored(read[0])
		if id, _ := seal.KeyOf(value); id != s.keys.Primary() {
			t.Errorf("s%d is sealed with the key of before", i)
		}
	}
	if got, err := s.Get(ctx, changed.Key()); err != nil || got.GetLabels()["changed"] != "meanwhile" {
		t.Errorf("%v %v", got, err)
	}
	if all, _, err := s.List(ctx, objects.Secret, ""); err != nil || len(all) != 4 {
		t.Errorf("%d are left, %v", len(all), err)
	}
}
