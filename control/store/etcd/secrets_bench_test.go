package etcd

import (
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
)

// secretsOf is a store with n Secrets of a kibibyte each.
func secretsOf(b *testing.B, n int) *Store {
	b.Helper()
	s, err := OpenEmbedded(b.Context(), b.TempDir(), openKeys(b, b.TempDir()), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	value := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Secret","data":{"key":"%01000d"}}`, 7)
	var puts []clientv3.Op
	for i := range n {
		key := objects.Key{Kind: objects.Secret.Kind, Namespace: "shop", Name: fmt.Sprint("s", i)}
		sealed, err := s.keys.Seal(value, path(key))
		if err != nil {
			b.Fatal(err)
		}
		if puts = append(puts, clientv3.OpPut(specKey(key), string(sealed))); len(puts) == 100 || i == n-1 {
			if _, err := s.client.Txn(b.Context()).Then(puts...).Commit(); err != nil {
				b.Fatal(err)
			}
			puts = nil
		}
	}
	return s
}

// What it costs to ask for the status, again and again and after each change of one Secret, and to rotate the keys.
func BenchmarkSecrets(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		s := secretsOf(b, n)
		ask := func(b *testing.B) {
			b.Helper()
			if status, err := s.SecretsStatus(b.Context()); err != nil || status.Secrets != n || len(status.Unreadable) > 0 || status.Unsealed > 0 {
				b.Fatal(status.Secrets, err)
			}
		}
		b.Run(fmt.Sprintf("ask-first/%d", n), func(b *testing.B) {
			for b.Loop() {
				s.looked.secrets = nil
				ask(b)
			}
		})
		b.Run(fmt.Sprintf("ask/%d", n), func(b *testing.B) {
			for b.Loop() {
				ask(b)
			}
		})
		b.Run(fmt.Sprintf("ask-after-change/%d", n), func(b *testing.B) {
			key := objects.Key{Kind: objects.Secret.Kind, Namespace: "shop", Name: "s0"}
			for b.Loop() {
				sealed, err := s.keys.Seal([]byte(`{"apiVersion":"v1","kind":"Secret"}`), path(key))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := s.client.Put(b.Context(), specKey(key), string(sealed)); err != nil {
					b.Fatal(err)
				}
				ask(b)
			}
		})
		b.Run(fmt.Sprintf("rotate/%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := s.RotateSecrets(b.Context(), true); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
