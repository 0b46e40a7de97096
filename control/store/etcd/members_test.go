package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/cache"
	"heddle.io/heddle/control/store/etcd/etcdtest"
	"heddle.io/heddle/control/store/storetest"
)

func TestMain(m *testing.M) {
	if etcdtest.RunMember() {
		return
	}
	if os.Getenv(writerEnvironment) != "" {
		runWriter()
		return
	}
	os.Exit(m.Run())
}

func openMembers(t *testing.T, m *etcdtest.Members) *Store {
	t.Helper()
	// The members elect a leader first.
	for started := time.Now(); ; {
		s, err := OpenExternal(t.Context(), openKeys(t, t.TempDir()), ExternalOf("c", m.Etcd))
		if err == nil {
			return s
		}
		if time.Since(started) > 30*time.Second {
			t.Fatal(err)
		}
	}
}

func TestThreeMembersKeepTheContract(t *testing.T) {
	m := etcdtest.Start(t)
	s := openMembers(t, m)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	storetest.Run(t, subject(s))
}

// What was acknowledged while members were killed, one after the other, is there; batches are whole; the cache ends as the
// store is.
func TestMembersAreKilledUnderWrites(t *testing.T) {
	m := etcdtest.Start(t)
	s := openMembers(t, m)
	c, err := cache.Open(t.Context(), cache.Options{Store: s, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var followed sync.WaitGroup
	followed.Go(func() { c.Run(ctx) })
	var written, failed atomic.Int64
	progress := make(chan struct{}, 1)
	var writer sync.WaitGroup
	acknowledged := map[int]bool{}
	writer.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			label := fmt.Sprint(n)
			err := c.Apply(t.Context(), []store.Write{put(labelled(t, fmt.Sprintf("left-%d", n), label)), put(labelled(t, fmt.Sprintf("right-%d", n), label))})
			if err != nil {
				failed.Add(1)
				continue
			}
			acknowledged[n] = true
			written.Add(1)
			offer(progress)
		}
	})
	// wait until so many more are written.
	wait := func(more int64) {
		t.Helper()
		limit := time.NewTimer(60 * time.Second)
		defer limit.Stop()
		for until := written.Load() + more; written.Load() < until; {
			select {
			case <-progress:
			case <-limit.C:
				t.Fatalf("%d batches were written, %d failed; no more are", written.Load(), failed.Load())
			}
		}
	}
	wait(20)
	for n := range 3 {
		m.Kill(n)
		wait(20)
		m.Restart(n)
		wait(20)
	}
	stop()
	writer.Wait()
	followed.Wait()
	if err := c.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, _, err := c.List(t.Context(), objects.ServiceAccount, "")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, o := range all {
		there[o.GetName()] = true
	}
	for n := range acknowledged {
		if !there[fmt.Sprintf("left-%d", n)] || !there[fmt.Sprintf("right-%d", n)] {
			t.Errorf("batch %d was acknowledged and is lost", n)
		}
	}
	for name := range there {
		side, n, _ := strings.Cut(name, "-")
		other := map[string]string{"left": "right", "right": "left"}[side]
		if !there[other+"-"+n] {
			t.Errorf("half of a batch: %s", name)
		}
	}
	t.Logf("%d batches written, %d reported as failed, while each member was killed once", written.Load(), failed.Load())
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// The clusters that share members see nothing of each other, and who shows no certificate sees nothing at all.
func TestMembersAreShared(t *testing.T) {
	m := etcdtest.Start(t)
	s := openMembers(t, m)
	other := ExternalOf("c", m.Etcd)
	other.Cluster = "d"
	o, err := OpenExternal(t.Context(), openKeys(t, t.TempDir()), other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(t.Context(), put(account(t, "a"))); err != nil {
		t.Fatal(err)
	}
	if all, _, err := o.List(t.Context(), objects.ServiceAccount, ""); err != nil || len(all) != 0 {
		t.Errorf("another cluster's: %v, %v", all, err)
	}
	// Keys are kept for a store elsewhere, whoever uses their file after it.
	write(t, s, secret(t, "one"))
	file := filepath.Dir(s.keys.File())
	own := open(t, file)
	write(t, own, secret(t, "own"))
	for range 2 {
		if status, err := own.RotateSecrets(t.Context(), true); err != nil || len(status.Keys) != 2 || status.Rotating || status.Keys[1].Secrets != 1 {
			t.Errorf("%+v %v", status, err)
		}
	}
	back, err := OpenExternal(t.Context(), openKeys(t, file), ExternalOf("c", m.Etcd))
	if err != nil {
		t.Fatal(err)
	}
	if o, err := back.Get(t.Context(), secret(t, "one").Key()); err != nil || o.Unreadable != "" {
		t.Errorf("%s %v", o.Unreadable, err)
	}
	// Its own rotation forgets them, and nothing else does.
	if status, err := back.RotateSecrets(t.Context(), true); err != nil || len(status.Keys) != 1 || status.Keys[0].Secrets != 1 || len(status.Keys[0].Stores) != 1 {
		t.Errorf("%+v %v", status, err)
	}
	for _, s := range []*Store{s, o, back} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	// A key that cannot be made is no fault of the members.
	third, without := ExternalOf("e", m.Etcd), kms(t, `echo "vault: sealed" >&2; exit 1`)
	if _, err := OpenExternal(t.Context(), keysOf(t, seal.Options{File: filepath.Join(t.TempDir(), "secrets.key"), Command: without}), third); !errors.Is(err, errFirstKey) || !strings.Contains(err.Error(), without+" wrap: exit status 1: vault: sealed") || strings.Contains(err.Error(), "majority") {
		t.Errorf("opened without a first key: %v", err)
	}
	stranger := ExternalOf("c", m.Etcd)
	_, stranger.Cert, stranger.Key = etcdtest.Certificates(t, t.TempDir())
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if s, err := OpenExternal(short, openKeys(t, t.TempDir()), stranger); err == nil {
		t.Errorf("opened with a stranger's certificate; closing: %v", s.Close())
	}
}

func labelled(t *testing.T, name, label string) *objects.Object {
	t.Helper()
	return storetest.Account(t, name, label)
}

// subject has the suite of tests run on an open store.
func subject(s *Store) storetest.Subject {
	return storetest.Subject{
		Open: func(t *testing.T) store.Store {
			// The next test finds it empty.
			for _, prefix := range []string{objectsPrefix, recordsPrefix} {
				if _, err := s.client.Delete(t.Context(), prefix, clientv3.WithPrefix()); err != nil {
					t.Fatal(err)
				}
			}
			return shared{s}
		},
		Forget: func(t *testing.T) {
			got, err := s.client.Get(t.Context(), formatKey)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.client.Compact(t.Context(), got.Header.Revision); err != nil {
				t.Fatal(err)
			}
		},
	}
}
