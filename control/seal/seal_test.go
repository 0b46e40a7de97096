package seal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const value, place = `{"password":"open-sesame-4711"}`, "core/Secret/shop/one"

func ring(t *testing.T, o Options) *Ring {
	t.Helper()
	r, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func inFile(t *testing.T) Options {
	return Options{File: filepath.Join(t.TempDir(), "keys", "secrets.key")}
}

func sealed(t *testing.T, r *Ring) []byte {
	t.Helper()
	box, err := r.Seal([]byte(value), place)
	if err != nil {
		t.Fatal(err)
	}
	return box
}

func opens(t *testing.T, r *Ring, box []byte) {
	t.Helper()
	if got, err := r.Open(box, place); err != nil || string(got) != value {
		t.Errorf("%q %v", got, err)
	}
}

func TestSealedIsBoundToKeyAndPlace(t *testing.T) {
	o := inFile(t)
	r := ring(t, o)
	if !r.Empty() {
		t.Fatal("a key from nowhere")
	}
	if _, err := r.Seal([]byte(value), place); !errors.Is(err, ErrNoKey) {
		t.Errorf("%v", err)
	}
	if err := r.Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := sealed(t, r)
	opens(t, r, box)
	if bytes.Contains(box, []byte("open-sesame")) || bytes.Equal(box, sealed(t, r)) {
		t.Errorf("%q", box)
	}
	if id, ok := KeyOf(box); !ok || id != r.Primary() {
		t.Errorf("%q %v", id, ok)
	}
	if _, ok := KeyOf([]byte(value)); ok {
		t.Error("a document is said to be sealed")
	}
	for name, bad := range map[string][]byte{
		"another place": nil, "one bit": flipped(box), "cut short": box[:len(box)-1], "nothing": []byte("sealed:"), "no box": []byte("sealed:" + r.Primary() + ":"),
		"no key": bytes.Replace(box, []byte(r.Primary()), []byte("deadbeef"), 1), "a long key": []byte("sealed:" + strings.Repeat("a", 99) + ":x"),
	} {
		at := place
		if bad == nil {
			bad, at = box, "core/Secret/shop/two"
		}
		if got, err := r.Open(bad, at); !errors.Is(err, ErrClosed) || got != nil || !strings.Contains(err.Error(), "apply") {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	// After a restart.
	opens(t, ring(t, o), box)
	info, err := os.Stat(o.File)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

func flipped(box []byte) []byte {
	out := bytes.Clone(box)
	out[len(out)-20] ^= 1
	return out
}

func TestOlderKeysOpenUntilTheyAreForgotten(t *testing.T) {
	o := inFile(t)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	o.Now = func() time.Time { return now }
	r := ring(t, o)
	for range 3 {
		if err := r.Add(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	status := r.Status()
	if len(status.Keys) != 3 || !status.Rotating || !status.Keys[2].Primary || status.Keys[0].Primary || !status.Keys[0].Created.Equal(now) {
		t.Errorf("%+v", status)
	}
	second := status.Keys[1].ID
	box := sealed(t, r)
	if err := r.Retain(second); err != nil {
		t.Fatal(err)
	}
	if got := r.Status(); len(got.Keys) != 2 || got.Keys[0].ID != second {
		t.Errorf("%+v", got)
	}
	opens(t, ring(t, o), box)
	if err := r.Retain(); err != nil || r.Several() {
		t.Errorf("%+v %v", r.Status(), err)
	}
	opens(t, r, box)
	content, err := os.ReadFile(o.File)
	if err != nil || strings.Contains(string(content), second) {
		t.Errorf("the file still has a key that was forgotten: %v", err)
	}
}

// Files that are wrong are refused, and nothing of a key is in the error.
func TestBadKeyFiles(t *testing.T) {
	const key = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTQ3MTE="
	for name, one := range map[string]struct {
		content string
		mode    os.FileMode
		want    string
	}{
		"read by all": {`{}`, 0o644, "chmod 0600"},
		"of a group":  {`{}`, 0o640, "chmod 0600"},
		"torn":        {`{"primary":"a","keys":[{"id":"a","key":"` + key[:20], 0o600, "torn"},
		"empty":       {``, 0o600, "torn"},
		"something":   {`{"primary":7,"keys":"` + key + `"}`, 0o600, "restore the file"},
		"no primary":  {`{"primary":"b","keys":[{"id":"a","key":"` + key + `"}]}`, 0o600, "is not among them"},
		"31 bytes":    {strings.Repeat("k", 31), 0o600, "restore the file"},
		"33 bytes":    {strings.Repeat("k", 33), 0o600, "restore the file"},
	} {
		file := filepath.Join(t.TempDir(), "k")
		if err := os.WriteFile(file, []byte(one.content), one.mode); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), Options{File: file})
		if err == nil || !strings.Contains(err.Error(), one.want) || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), key[:8]) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The first versions kept one key as bare bytes; what was sealed with it is named "1".
func TestTheFirstFormOfTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secrets.key")
	if err := os.WriteFile(file, bytes.Repeat([]byte{7}, keyBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	r := ring(t, Options{File: file})
	box := sealed(t, r)
	if !bytes.HasPrefix(box, []byte("sealed:1:")) {
		t.Errorf("%q", box)
	}
	if err := r.Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	opens(t, ring(t, Options{File: file}), box)
}

func TestPrintedKeysTellNothing(t *testing.T) {
	o := inFile(t)
	r := ring(t, o)
	if err := r.Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	secret := r.keys.Keys[0].Key
	status, err := json.Marshal(r.Status())
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(r.keys.Keys[0]), fmt.Sprintf("%#v %+v", r.keys.Keys[0], r.keys), string(status)} {
		if strings.Contains(text, secret[:12]) {
			t.Errorf("%s", text)
		}
	}
}

// kms writes a program that wraps by turning the text around, and counts its runs.
func kms(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kms")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// reverse is a key management service for tests: `rev` wraps and unwraps.
const reverse = `echo "$1" >> "$0.runs"; [ -e "$0.away" ] && { echo "vault: sealed, token $(cat)" >&2; exit 3; }; rev` + "\n"

func TestKeysWrappedByACommand(t *testing.T) {
	o := inFile(t)
	o.Command = kms(t, reverse)
	r := ring(t, o)
	if err := r.Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := sealed(t, r)
	content, err := os.ReadFile(o.File)
	if err != nil || strings.Contains(string(content), `"key"`) || !strings.Contains(string(content), `"wrapped"`) {
		t.Errorf("%s %v", content, err)
	}
	// Its command stands with the key: another setting changes what wraps the next one only.
	plain := ring(t, Options{File: o.File})
	opens(t, plain, box)
	if err := plain.Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	if keys := plain.Status().Keys; keys[0].Command != o.Command || keys[1].Command != "" {
		t.Errorf("%+v", keys)
	}
	opens(t, plain, box)

	// The service goes away: what is open stays so, a new controller opens nothing, says why, and recovers.
	if err := os.WriteFile(o.Command+".away", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := r.Reload(t.Context()); err != nil || !changed {
		t.Errorf("the other ring's key is not seen: %v %v", changed, err)
	}
	opens(t, r, box)
	cold := ring(t, o)
	wrapped := plain.keys.Keys[0].Wrapped
	_, err = cold.Open(box, place)
	if !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), "vault: sealed") || !strings.Contains(err.Error(), o.Command+" unwrap") || strings.Contains(err.Error(), wrapped) {
		t.Errorf("%v", err)
	}
	if problem := cold.Status().Keys[0].Problem; !strings.Contains(problem, "exit status 3") {
		t.Errorf("%q", problem)
	}
	if err := cold.Add(t.Context()); err == nil || len(cold.Status().Keys) != 2 {
		t.Errorf("a key that cannot be wrapped was added: %v", err)
	}
	if changed, err := cold.Reload(t.Context()); err != nil || changed {
		t.Errorf("%v %v", changed, err)
	}
	if err := os.Remove(o.Command + ".away"); err != nil {
		t.Fatal(err)
	}
	if changed, err := cold.Reload(t.Context()); err != nil || !changed {
		t.Errorf("%v %v", changed, err)
	}
	opens(t, cold, box)
	// What is open is not unwrapped at each look.
	before, err := os.ReadFile(o.Command + ".runs")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cold.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(o.Command + ".runs"); err != nil || !bytes.Equal(before, after) {
		t.Errorf("run again: %s %v", after[len(before):], err)
	}
}

// Nothing is sealed with a key that the command may not give back, and what it says is passed on without what it was told.
func TestBadCommands(t *testing.T) {
	for name, one := range map[string]struct{ body, want string }{
		"tells its input": {`echo "cannot wrap $(cat)" >&2; exit 1`, "cannot wrap [redacted]"},
		"prints nothing":  {`cat > /dev/null`, "it printed nothing"},
		"wraps nothing":   {`cat`, "has the key in it, unwrapped"},
		"forgets":         {`cat > /dev/null; echo same`, "unwrap does not give what wrap was given"},
		"prints for ever": {`cat > /dev/null; head -c 100000 /dev/zero | tr '\0' a`, "more than 16384 bytes"},
		"is no program":   {"\x00", "KMS command"},
		"does not unwrap": {`[ "$1" = wrap ] && exec rev; echo "no such key" >&2; exit 1`, "unwrap: exit status 1: no such key"},
		"is killed":       {`kill -9 $$`, "signal: killed"},
		"does not read":   {`echo wrapped`, "unwrap does not give"},
	} {
		o := inFile(t)
		o.Command = kms(t, one.body)
		r := ring(t, o)
		err := r.Add(t.Context())
		if err == nil || !strings.Contains(err.Error(), one.want) || !strings.Contains(err.Error(), o.Command) {
			t.Errorf("%s: %v", name, err)
		}
		if !r.Empty() {
			t.Errorf("%s: a key was kept", name)
		}
	}
}

// A command that hangs is ended with what it started, in time.
func TestCommandThatHangs(t *testing.T) {
	path := kms(t, `(while :; do :; done) & cat > /dev/null; wait`)
	began := time.Now()
	_, err := command{path: path, limit: 200 * time.Millisecond}.run(t.Context(), "wrap", "text")
	if err == nil || !strings.Contains(err.Error(), "no answer within 200ms") || time.Since(began) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	// An end that was asked for is none of the command's doing.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (command{path: path}).run(ctx, "wrap", "text"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestWhichProgramsAreRun(t *testing.T) {
	good := kms(t, reverse)
	writable, plain, dir := kms(t, reverse), kms(t, reverse), t.TempDir()
	if err := errors.Join(os.Chmod(writable, 0o777), os.Chmod(plain, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := CheckCommand(good); err != nil {
		t.Error(err)
	}
	cases := map[string]string{writable: "others may write it", plain: "no program", dir: "no program", "kms": "not absolute", filepath.Join(dir, "none"): "no such file"}
	if os.Geteuid() == 0 {
		foreign := kms(t, reverse)
		if err := os.Chown(foreign, 65534, -1); err != nil {
			t.Fatal(err)
		}
		cases[foreign] = "belongs to user 65534"
	}
	for path, want := range cases {
		if _, err := Open(t.Context(), Options{File: filepath.Join(dir, "k"), Command: path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Keys are made, forgotten and read again at once: what is in memory is what is in the file.
func TestKeysChangeWhileTheyAreRead(t *testing.T) {
	o := inFile(t)
	r := ring(t, o)
	if err := r.Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 50 {
			if _, err := r.Reload(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 50 {
		if err := r.Add(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.Retain(); err != nil {
			t.Fatal(err)
		}
	}
	<-done
	box := sealed(t, r)
	opens(t, ring(t, o), box)
	// What another controller left in the file is not forgotten.
	if err := ring(t, o).Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Retain(); err == nil || !strings.Contains(err.Error(), "heddle secrets rotate") {
		t.Errorf("%v", err)
	}
}

// The keys of a store elsewhere are kept for it, whoever uses their file meanwhile, and whoever rotates.
func TestKeysAreKeptForStoresElsewhere(t *testing.T) {
	o := inFile(t)
	if ForOthers(o.File) {
		t.Error("of a file that is not there")
	}
	first := ring(t, o)
	if err := first.Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ForOthers(o.File) {
		t.Error("of the cluster's own")
	}
	// Two stores elsewhere, the second of which goes on with the key of the first.
	if err := first.Claim("etcd a/clusters/c"); err != nil {
		t.Fatal(err)
	}
	box := sealed(t, first)
	second := ring(t, o)
	if err := second.Claim("etcd b/clusters/c"); err != nil || !ForOthers(o.File) {
		t.Fatal(err)
	}
	for _, r := range []*Ring{second, ring(t, o)} {
		if err := errors.Join(r.Add(t.Context()), r.Retain()); err != nil || r.Several() || r.Status().Rotating {
			t.Errorf("%+v %v", r.Status(), err)
		}
		opens(t, ring(t, o), box)
	}
	back := ring(t, o)
	if err := back.Claim("etcd a/clusters/c"); err != nil || !back.Several() {
		t.Errorf("%+v %v", back.Status(), err)
	}
	opens(t, back, box)
	if err := back.Retain(); err != nil {
		t.Fatal(err)
	}
	if _, err := back.Open(box, place); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(o.File, []byte("{"), 0o600); err != nil || !ForOthers(o.File) {
		t.Errorf("a damaged file may hold such keys: %v", err)
	}
}

// Who has the keys does not lose them with the file, and writes it again with the next change.
func TestKeysOutliveTheirFile(t *testing.T) {
	o := inFile(t)
	r := ring(t, o)
	if err := r.Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := sealed(t, r)
	older, err := os.ReadFile(o.File)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	newer := sealed(t, r)
	for name, lose := range map[string]func() error{
		"removed": func() error { return os.Remove(o.File) }, "an older copy": func() error { return os.WriteFile(o.File, older, 0o600) },
	} {
		if err := lose(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		if missing := r.Status().Problem != ""; missing != (name == "removed") {
			t.Errorf("%s: %+v", name, r.Status())
		}
		opens(t, r, box)
		opens(t, r, newer)
		if err := r.Retain(r.Status().Keys[0].ID, r.Status().Keys[1].ID); err != nil {
			t.Fatal(err)
		}
		again := ring(t, o)
		opens(t, again, box)
		opens(t, again, newer)
	}
}

// Who is started again has the keys that the process before could use, from memory that outlives it, and says so until file and
// command give them again.
func TestKeysOutliveTheirProcess(t *testing.T) {
	o := inFile(t)
	o.Command = kms(t, reverse)
	var err error
	if o.Memory, err = Memory(); err != nil {
		t.Fatal(err)
	}
	defer o.Memory.Close()
	r := ring(t, o)
	if err := r.Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := sealed(t, r)
	away := o.Command + ".away"
	for name, c := range map[string]struct{ lose, back func() error }{
		"the service is away": {func() error { return os.WriteFile(away, nil, 0o600) }, func() error { return os.Remove(away) }},
		"the file is lost":    {func() error { return os.Rename(o.File, o.File+".away") }, func() error { return os.Rename(o.File+".away", o.File) }},
	} {
		if err := c.lose(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			next := ring(t, o)
			opens(t, next, box)
			if status := next.Status(); len(status.Keys) != 1 || status.Keys[0].Kept == "" || status.Keys[0].Problem != "" {
				t.Errorf("%s: %+v", name, status)
			}
			opens(t, next, sealed(t, next))
			r = next
		}
		if _, err := r.Reload(t.Context()); err != nil || r.Status().Keys[0].Kept == "" {
			t.Errorf("%s: %v %+v", name, err, r.Status())
		}
		if err := c.back(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reload(t.Context()); err != nil || r.Status().Keys[0].Kept != "" {
			t.Errorf("%s: %v %+v", name, err, r.Status())
		}
	}
	// What was forgotten stays so, and the memory is found by the process that has it and taken for nothing else.
	if err := errors.Join(r.Add(t.Context()), r.Retain()); err != nil {
		t.Fatal(err)
	}
	if _, err := ring(t, o).Open(box, place); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	found := FindMemory(os.Getpid())
	if found == nil {
		t.Fatal("not found")
	}
	defer found.Close()
	if _, err := OpenMemory(o.File); err == nil {
		t.Error("a file is taken for memory")
	}
	o.Memory = found
	if err := os.Remove(o.File); err != nil {
		t.Fatal(err)
	}
	opens(t, ring(t, o), sealed(t, r))
	if err := found.Truncate(7); err != nil {
		t.Fatal(err)
	}
	if torn := ring(t, o); !torn.Empty() {
		t.Errorf("%+v", torn.Status())
	}
}
