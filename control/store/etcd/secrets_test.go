package etcd

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/cache"
)

const password = "open-sesame-4711"

func secret(t *testing.T, name string) *objects.Object {
	t.Helper()
	return decode(t, fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: shop}\nstringData: {key: %s}\n", name, password))
}

// clear says whether a text holds the password, as it is or in any of the three alignments of base64.
func clear(text []byte) bool {
	for shift := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + password))
		if bytes.Contains(text, []byte(encoded[4:len(encoded)-4])) {
			return true
		}
	}
	return bytes.Contains(text, []byte(password))
}

// filesWith are the files below a directory whose content does something.
func filesWith(t *testing.T, dir string, does func([]byte) bool) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil && does(content) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func write(t *testing.T, s *Store, o *objects.Object) {
	t.Helper()
	if _, err := s.Write(t.Context(), put(o)); err != nil {
		t.Fatal(err)
	}
}

// record is a Secret as it is stored.
func record(t *testing.T, s *Store, key objects.Key) []byte {
	t.Helper()
	got, err := s.client.Get(t.Context(), specKey(key))
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("%v %v", got, err)
	}
	value, _ := stored(got.Kvs[0])
	return value
}

// Neither the database nor the log that is written before it has a Secret's value in it.
func TestSecretsAreSealed(t *testing.T) {
	dir := t.TempDir()
	s, ctx := open(t, dir), t.Context()
	one := secret(t, "one")
	write(t, s, one)
	write(t, s, account(t, "canary-of-the-log"))
	// A batch that was interrupted is kept with the Secrets in it.
	if err := s.Records().Put(ctx, "batch-1", []byte("it holds "+password), true); err != nil {
		t.Fatal(err)
	}
	if all, _, err := s.Records().All(ctx); err != nil || !clear(all["batch-1"]) {
		t.Errorf("%d records, %v", len(all), err)
	}
	got, err := s.Get(ctx, one.Key())
	if err != nil || got.Unreadable != "" {
		t.Fatal(got.Unreadable, err)
	}
	if text, err := got.Document(); err != nil || !clear([]byte(fmt.Sprint(text))) {
		t.Errorf("what was read is not what was written: %v", err)
	}
	if found := filesWith(t, dir, func(b []byte) bool { return bytes.Contains(b, []byte("canary-of-the-log")) }); len(found) == 0 {
		t.Fatal("the test does not find what is surely there")
	}
	if found := filesWith(t, dir, clear); len(found) > 0 {
		t.Errorf("the Secret is in the clear in %v", found)
	}
	info, err := os.Stat(filepath.Join(dir, "secrets.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v", info.Mode(), err)
	}
}

// A record in another Secret's place opens nothing, and keeps nothing else from being read.
func TestUndecryptableSecretSaysSo(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	one := secret(t, "one")
	write(t, s, one)
	_, start, err := s.List(ctx, objects.Secret, "")
	if err != nil {
		t.Fatal(err)
	}
	events, _ := s.Watch(ctx, objects.Secret, start)
	other := objects.Key{Kind: "Secret", Namespace: "shop", Name: "other"}
	if _, err := s.client.Put(ctx, specKey(other), string(record(t, s, one.Key()))); err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(ctx, other)
	if err != nil || !strings.Contains(got.Unreadable, "moved from another Secret's place") || got.Key() != other || got.Version == "" {
		t.Fatalf("%+v %v", got, err)
	}
	if document, err := got.Document(); err != nil || clear([]byte(fmt.Sprint(document))) {
		t.Errorf("%v %v", document, err)
	}
	if e := <-events; e.Object == nil || e.Object.Unreadable == "" {
		t.Errorf("the watch told %+v", e)
	}
	if all, _, err := s.List(ctx, objects.Secret, ""); err != nil || len(all) != 2 {
		t.Errorf("list: %v, %v", all, err)
	}
	status, err := s.SecretsStatus(ctx)
	if err != nil || status.Secrets != 2 || len(status.Unreadable) != 1 || status.Unreadable[0].Secret != other.String() {
		t.Errorf("%+v %v", status, err)
	}
	// What could not be read must not be written back, with the content gone for good.
	if _, err := s.Write(ctx, put(got)); err == nil || !strings.Contains(err.Error(), "cannot be written as it was read") {
		t.Errorf("%v", err)
	}
	// Its status can be told, and it can be applied anew.
	if _, err := s.SetStatus(ctx, other, objects.Status{Proxies: 1}, ""); err != nil {
		t.Error(err)
	}
	if _, err := s.Write(ctx, put(secret(t, "other"))); err != nil {
		t.Error(err)
	}
	if status, err := s.SecretsStatus(ctx); err != nil || len(status.Unreadable) != 0 {
		t.Errorf("%+v %v", status, err)
	}
}

// A key that is lost is not replaced without a word: Secrets of before say that they are lost, none can be written, and
// the file comes back as it went.
func TestLostKey(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "secrets.key")
	s, ctx := open(t, dir), t.Context()
	one := secret(t, "one")
	if _, err := s.Write(ctx, put(one)); err != nil {
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
	got, err := s.Get(ctx, one.Key())
	if err != nil || !strings.Contains(got.Unreadable, "is not in "+file+"; restore the file") {
		t.Errorf("%q %v", got.Unreadable, err)
	}
	if _, err := s.Write(ctx, put(secret(t, "two"))); !errors.Is(err, seal.ErrNoKey) || !strings.Contains(err.Error(), "heddle secrets rotate") {
		t.Errorf("%v", err)
	}
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	if changed, err := s.ReloadKeys(ctx); err != nil || !changed {
		t.Fatal(changed, err)
	}
	if got, err := s.Get(ctx, one.Key()); err != nil || got.Unreadable != "" {
		t.Errorf("%q %v", got.Unreadable, err)
	}
	// Whoever has no copy goes on with a new key; the Secret stays lost and is told of, until it is applied again.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.keys = openKeys(t, dir)
	status, err := s.RotateSecrets(ctx, true)
	if err != nil || len(status.Keys) != 1 || len(status.Unreadable) != 1 {
		t.Errorf("%+v %v", status, err)
	}
	if _, err := s.Write(ctx, put(one)); err != nil {
		t.Error(err)
	}
}

// A rotation leaves one key, no record under another one, no revision from before, and nobody who cannot read on.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	s, ctx := open(t, dir), t.Context()
	const secrets = 3*secretsPage + 1
	for n := range secrets {
		write(t, s, secret(t, fmt.Sprintf("s%d", n)))
	}
	_, start, err := s.List(ctx, objects.Secret, "")
	if err != nil {
		t.Fatal(err)
	}
	revision, err := strconv.ParseInt(string(start), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	before := s.keys.Primary()
	status, err := s.RotateSecrets(ctx, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(status.Keys) != 1 || status.Keys[0].ID == before || status.Keys[0].Secrets != secrets || status.Rotating || len(status.Unreadable) > 0 {
		t.Errorf("%+v", status)
	}
	if id, sealed := seal.KeyOf(record(t, s, secret(t, "s0").Key())); !sealed || id != s.keys.Primary() {
		t.Errorf("sealed with %s", id)
	}
	if _, err := s.client.Get(ctx, kindPrefix(objects.Secret), clientv3.WithPrefix(), clientv3.WithRev(revision)); err == nil {
		t.Error("the revision from before can still be read")
	}
	events, failure := s.Watch(ctx, objects.Secret, start)
	for range events {
		t.Error("an event of a revision that is gone")
	}
	if err := failure(); !errors.Is(err, store.ErrExpired) {
		t.Errorf("%v", err)
	}
}

// A Secret that was stored as it is, whoever did so, is sealed by a rotation, and gone from the database.
func TestRotationSealsWhatWasNot(t *testing.T) {
	dir := t.TempDir()
	s, ctx := open(t, dir), t.Context()
	one := secret(t, "one")
	plain, err := one.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Put(ctx, specKey(one.Key()), string(plain)); err != nil {
		t.Fatal(err)
	}
	if status, err := s.SecretsStatus(ctx); err != nil || status.Unsealed != 1 {
		t.Errorf("%+v %v", status, err)
	}
	if status, err := s.RotateSecrets(ctx, true); err != nil || status.Unsealed != 0 || status.Secrets != 1 {
		t.Errorf("%+v %v", status, err)
	}
	if got, err := s.Get(ctx, one.Key()); err != nil || got.Unreadable != "" {
		t.Errorf("%q %v", got.Unreadable, err)
	}
	for _, file := range filesWith(t, dir, clear) {
		// etcd's log keeps what was written until it has turned over: the note on secrets at rest says what to do.
		if !strings.HasSuffix(file, ".wal") {
			t.Errorf("%s still holds the Secret", file)
		}
	}
}

// A rotation that ends anywhere is finished by the next one, with the key that it began with.
func TestRotationGoesOn(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "secrets.key")
	ctx := t.Context()
	s, err := OpenEmbedded(ctx, dir, openKeys(t, dir), nil)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		if _, err := s.Write(ctx, put(secret(t, name))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.keys.Add(ctx); err != nil {
		t.Fatal(err)
	}
	begun := s.keys.Primary()
	if err := s.reseal(ctx, specKey(secret(t, "b").Key())); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir)
	status, err := again.SecretsStatus(ctx)
	if err != nil || !status.Rotating || len(status.Unreadable) != 0 || status.Keys[0].Secrets != 3 || status.Keys[1].Secrets != 1 {
		t.Errorf("%+v %v", status, err)
	}
	for _, anew := range []bool{true, false} {
		status, err = again.RotateSecrets(ctx, anew)
		if err != nil || status.Rotating || len(status.Keys) != 1 || status.Keys[0].ID != begun || status.Keys[0].Secrets != len(names) {
			t.Errorf("%+v %v", status, err)
		}
	}
	if content, err := os.ReadFile(file); err != nil || strings.Count(string(content), `"id"`) != 1 {
		t.Errorf("%d bytes %v", len(content), err)
	}
}

// Who writes a Secret while it is rotated wins, and reads it.
func TestRotationAndWriters(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	if _, err := s.Write(ctx, put(secret(t, "one"))); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		defer close(failed)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := s.Write(ctx, put(secret(t, fmt.Sprintf("w%d", n%3)))); err != nil {
				failed <- err
				return
			}
		}
	}()
	for range 5 {
		if status, err := s.RotateSecrets(ctx, true); err != nil || len(status.Unreadable) > 0 {
			t.Errorf("%+v %v", status, err)
		}
	}
	close(stop)
	if err := <-failed; err != nil {
		t.Error(err)
	}
	if status, err := s.RotateSecrets(ctx, false); err != nil || len(status.Keys) != 1 || len(status.Unreadable) > 0 {
		t.Errorf("%+v %v", status, err)
	}
}

// A file that goes while its keys are in use takes no Secret with it: they stay in use, it is told of, and a rotation writes
// it again.
func TestRotationWithoutTheFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "secrets.key")
	s, ctx := open(t, dir), t.Context()
	write(t, s, secret(t, "one"))
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if changed, err := s.ReloadKeys(ctx); err != nil || changed {
		t.Fatal(changed, err)
	}
	write(t, s, secret(t, "two"))
	if status, err := s.SecretsStatus(ctx); err != nil || !strings.Contains(status.Problem, "the file is missing") || len(status.Unreadable) > 0 {
		t.Errorf("%+v %v", status, err)
	}
	for _, anew := range []bool{true, false} {
		status, err := s.RotateSecrets(ctx, anew)
		if err != nil || status.Problem != "" || len(status.Keys) != 1 || status.Keys[0].Secrets != 2 || len(status.Unreadable) > 0 {
			t.Errorf("%+v %v", status, err)
		}
		s.keys = openKeys(t, dir)
		if status, err := s.SecretsStatus(ctx); err != nil || len(status.Unreadable) > 0 {
			t.Errorf("a controller that starts reads %+v %v", status, err)
		}
		// Of a rotation that goes on, too.
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

// Whoever read a Secret before it was sealed anew finds it as it was: a write on condition of its version is made, by a watch
// it has not changed, and so a batch that a rotation comes into leaves nothing out.
func TestRotationChangesNoVersion(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	for _, name := range []string{"a", "b", "gone"} {
		write(t, s, secret(t, name))
	}
	before := map[string]objects.Version{}
	all, _, err := s.List(ctx, objects.Secret, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		before[o.GetName()] = o.Version
	}
	for range 2 {
		if _, err := s.RotateSecrets(ctx, true); err != nil {
			t.Fatal(err)
		}
	}
	if all, _, err = s.List(ctx, objects.Secret, ""); err != nil || len(all) != 3 {
		t.Fatal(all, err)
	}
	for _, o := range all {
		if o.Version != before[o.GetName()] || o.Unreadable != "" {
			t.Errorf("%s has version %s, had %s: %s", o.Key(), o.Version, before[o.GetName()], o.Unreadable)
		}
	}
	if err := s.Export(ctx, func(e store.Exported) error { _, err := s.Import(e); return err }); err != nil {
		t.Error(err)
	}
	change := func(name string) store.Write {
		w := put(secret(t, name))
		w.IfVersion = before[name]
		return w
	}
	version, err := s.Write(ctx, change("a"))
	if err != nil || version == before["a"] {
		t.Errorf("%q %v", version, err)
	}
	if _, err := s.Write(ctx, store.Write{Key: secret(t, "gone").Key(), IfVersion: before["gone"]}); err != nil {
		t.Error(err)
	}
	// What somebody wrote is another one.
	write(t, s, secret(t, "b"))
	for _, name := range []string{"a", "b", "gone"} {
		if _, err := s.Write(ctx, change(name)); !errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What stands before a record is a version of this store that is older than the record, or nothing.
func TestVersionsBeforeRecordsAreNotBelieved(t *testing.T) {
	for as, want := range map[string]objects.Version{"5": "5", "05": "5", "": "9", "0": "9", "-1": "9", "9": "9", "10": "9", "absent": "9", "99999999999999999999": "9"} {
		record, got := stored(&mvccpb.KeyValue{ModRevision: 9, Value: []byte("as:" + as + ":sealed:k:box")})
		if got != want || string(record) != "sealed:k:box" {
			t.Errorf("%q: version %q of %q", as, got, record)
		}
	}
	if record, got := stored(&mvccpb.KeyValue{ModRevision: 9, Value: []byte("as:5")}); got != "9" || string(record) != "as:5" {
		t.Errorf("version %q of %q", got, record)
	}
}

// between rotates the keys after the first write of a batch that changes Secrets.
type between struct {
	*Store
	t    *testing.T
	once sync.Once
}

func (b *between) Write(ctx context.Context, w store.Write) (objects.Version, error) {
	version, err := b.Store.Write(ctx, w)
	b.once.Do(func() {
		if _, err := b.RotateSecrets(ctx, true); err != nil {
			b.t.Error(err)
		}
	})
	return version, err
}

func TestRotationInABatch(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	var writes []store.Write
	for _, name := range []string{"a", "b", "c"} {
		write(t, s, secret(t, name))
		o := secret(t, name)
		o.SetLabels(map[string]string{"by": "batch"})
		writes = append(writes, put(o))
	}
	c, err := cache.Open(ctx, cache.Options{Store: &between{Store: s, t: t}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, writes); err != nil || len(c.Reports()) > 0 {
		t.Fatalf("%v %+v", err, c.Reports())
	}
	for _, w := range writes {
		if o, err := s.Get(ctx, w.Key); err != nil || o.GetLabels()["by"] != "batch" {
			t.Errorf("%s: %v", w.Key, err)
		}
	}
	// The record of the batch named the older key; nothing does now.
	if status, err := s.RotateSecrets(ctx, false); err != nil || len(status.Keys) != 1 || status.Keys[0].Secrets != 3 {
		t.Errorf("%+v %v", status, err)
	}
}
