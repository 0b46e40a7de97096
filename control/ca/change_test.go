package ca

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// advance brings a change through a phase.
func advance(t *testing.T, a *Authority, id string, to Phase) {
	t.Helper()
	if err := a.Advance(id, to); err != nil {
		t.Fatal(err)
	}
}

func TestRotation(t *testing.T) {
	c := &clock{start}
	dir := t.TempDir()
	a := open(t, dir, c)
	before, old := a.Roots(), sign(t, a)
	change, err := a.BeginRotation()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.BeginRotation(); !errors.Is(err, ErrChanging) {
		t.Error(err)
	}
	if err := a.Advance(change.ID, Retiring); err == nil {
		t.Error("a phase was left out")
	}
	if err := a.Finish(change.ID); err == nil {
		t.Error("it ended in its first phase")
	}
	// The previous root signs, both are trusted, also after a restart.
	a = open(t, dir, c)
	if got := a.Roots(); !bytes.HasPrefix(got, before) || bytes.Count(got, []byte("BEGIN")) != 2 {
		t.Errorf("roots\n%s", got)
	}
	if got := sign(t, a); got.Issuer != old.Issuer {
		t.Error(got.Issuer)
	}
	advance(t, a, change.ID, Signing)
	if err := a.Abort(change.ID); !errors.Is(err, ErrTooLate) {
		t.Error(err)
	}
	fresh := sign(t, a)
	for _, shown := range []Certificate{old, fresh} {
		leaf(t, Certificate{Chain: shown.Chain, Roots: fresh.Roots}, c.now)
	}
	if bytes.HasPrefix(fresh.Roots, before) {
		t.Error("the previous root still comes first")
	}
	advance(t, a, change.ID, Retiring)
	a = open(t, dir, c)
	if got := a.Roots(); bytes.Contains(got, bytes.TrimSpace(before)) || string(got) != change.Next {
		t.Errorf("roots\n%s", got)
	}
	if err := a.Finish(change.ID); err != nil {
		t.Fatal(err)
	}
	if _, changing := open(t, dir, c).Change(); changing {
		t.Error("it goes on")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(content, []byte("PRIVATE KEY")) && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}
}

// A crash between any two files that taking the next root into use writes: the next start completes it, and signs with the
// key that was announced.
func TestRotationIsCompletedAfterACrash(t *testing.T) {
	files := []string{"root-key.pem", "root-chain.pem", "root.pem", "former-intermediates.json", "intermediate-key.pem", "intermediate.pem", "next-intermediate.json"}
	for written := range len(files) + 1 {
		c := &clock{start}
		dir := t.TempDir()
		a := open(t, dir, c)
		old := sign(t, a)
		change, err := a.BeginRotation()
		if err != nil {
			t.Fatal(err)
		}
		announced := a.state().next.issuer.key
		before := map[string][]byte{}
		for _, f := range files {
			before[f], _ = os.ReadFile(filepath.Join(dir, f))
		}
		// The moment after the phase was kept, with the key still in the change.
		crashed := *a.state().change
		crashed.Phase = Signing
		advance(t, a, change.ID, Signing)
		if err := a.update(func(s *state) error { return s.setChange(&crashed) }); err != nil {
			t.Fatal(err)
		}
		for _, f := range files[written:] {
			err := os.Remove(filepath.Join(dir, f))
			if before[f] != nil {
				err = os.WriteFile(filepath.Join(dir, f), before[f], 0o600)
			}
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
		again := open(t, dir, c)
		fresh := sign(t, again)
		if string(again.Root()) != change.Next || again.state().change.Key != "" {
			t.Errorf("%d files written: the next root does not sign, or its key is there twice", written)
		}
		if !belongs(announced, again.state().current.certificate) || !again.Prepared() || belongs(announced, again.state().next.issuer.certificate) {
			t.Errorf("%d files written: it signs with another key than the one that was announced", written)
		}
		if _, rest := pem.Decode(old.Chain); !slices.Contains(again.Anchors(), string(rest)) {
			t.Errorf("%d files written: the intermediate before is no anchor", written)
		}
		for _, shown := range []Certificate{old, fresh} {
			leaf(t, Certificate{Chain: shown.Chain, Roots: fresh.Roots}, c.now)
		}
		if last := open(t, dir, c); string(last.Root()) != change.Next {
			t.Errorf("%d files written: another start has another root", written)
		}
	}
}

// What cannot be recorded, or written, is tried again: until then, nothing is retired.
func TestNextRootThatCannotBeTakenIntoUse(t *testing.T) {
	c := &clock{start}
	a := open(t, t.TempDir(), c)
	change, err := a.BeginRotation()
	if err != nil {
		t.Fatal(err)
	}
	full := errors.New("the disk is full")
	record := a.options.Record
	a.options.Record = func(string, string, time.Time) error { return full }
	if err := a.Advance(change.ID, Signing); !errors.Is(err, full) {
		t.Fatal(err)
	}
	if err := a.Complete(change.ID); !errors.Is(err, full) {
		t.Error(err)
	}
	if err := a.Advance(change.ID, Retiring); err == nil {
		t.Error("the root of the intermediate in use is retired")
	}
	leaf(t, sign(t, a), c.now)
	a.options.Record = record
	for range 2 {
		if err := a.Complete(change.ID); err != nil {
			t.Fatal(err)
		}
	}
	advance(t, a, change.ID, Retiring)
	if issued := sign(t, a); string(issued.Roots) != change.Next {
		t.Error("the previous root is trusted")
	} else {
		leaf(t, issued, c.now)
	}
}

func TestTornChangeIsNoRoot(t *testing.T) {
	c := &clock{start}
	dir := t.TempDir()
	a := open(t, dir, c)
	if _, err := a.BeginRotation(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(changePath(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, torn := range [][]byte{nil, content[:len(content)/2], bytes.Replace(content, []byte(`"trust"`), []byte(`"later"`), 1),
		bytes.Replace(content, []byte(`"id": "`), []byte(`"id": "0`), 1)} {
		if err := os.WriteFile(changePath(dir), torn, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(meshOptions(dir, c)); err == nil || !strings.Contains(err.Error(), "change.json") {
			t.Errorf("%d bytes: %v", len(torn), err)
		}
	}
}

func TestRequestIsSignedElsewhereAndInstalled(t *testing.T) {
	c := &clock{start}
	dir := t.TempDir()
	a := open(t, dir, c)
	if _, err := a.Requested([]byte("x"), nil); err == nil || !strings.Contains(err.Error(), "heddle ca csr") {
		t.Error(err)
	}
	first, err := a.Request(false)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := open(t, dir, c).Request(false); err != nil || !bytes.Equal(again, first) {
		t.Errorf("another request: %v", err)
	}
	request, err := a.Request(true)
	if err != nil || bytes.Equal(request, first) {
		t.Fatalf("the same request: %v", err)
	}
	if info, err := os.Stat(pendingPath(dir)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	root := issue(t, nil, authorityTemplate("Corporate root"), ecKey(t))
	signed := func(text []byte) []byte {
		block, _ := pem.Decode(text)
		parsed, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(parsed.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(oidBasicConstraints) && e.Critical }) {
			t.Error("the request does not say what it is for")
		}
		template := authorityTemplate("Mesh authority")
		template.MaxPathLen = 1
		der, err := x509.CreateCertificate(a.options.Random, template, root.cert, parsed.PublicKey, root.key)
		if err != nil {
			t.Fatal(err)
		}
		return encode(der)
	}
	if _, err := a.Requested(signed(first), encode(root.cert.Raw)); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("the answer to an earlier request: %v", err)
	}
	e, err := a.Requested(signed(request), encode(root.cert.Raw))
	if err != nil {
		t.Fatal(err)
	}
	change, err := a.BeginInstall(e)
	if err != nil {
		t.Fatal(err)
	}
	old := sign(t, a)
	advance(t, a, change.ID, Signing)
	fresh := sign(t, a)
	for _, shown := range []Certificate{old, fresh} {
		leaf(t, Certificate{Chain: shown.Chain, Roots: fresh.Roots}, c.now)
	}
	if d := a.Describe(); d.Requested || d.Above != "CN=Corporate root" {
		t.Errorf("%+v", d)
	}
	advance(t, a, change.ID, Retiring)
	if err := a.Finish(change.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := a.BeginInstall(e); err == nil {
		t.Error("the root that is in use was installed")
	}
	if d := open(t, dir, c).Describe(); d.Above != "CN=Corporate root" {
		t.Errorf("%+v", d)
	}
}

// An authority that verifiers could mistake for the current one is refused: the same name and key identifier, another key.
func TestRootOfTheSameNameWithAnotherKey(t *testing.T) {
	c := &clock{start}
	a := open(t, t.TempDir(), c)
	template := authorityTemplate("x")
	template.Subject, template.SubjectKeyId = a.state().root.certificate.Subject, a.state().root.certificate.SubjectKeyId
	twin := issue(t, nil, template, ecKey(t))
	e, err := NewExternal(*a.options, encode(twin.cert.Raw), nil, keyPEM(t, twin.key))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.BeginInstall(e); err == nil || !strings.Contains(err.Error(), "could not tell them apart") {
		t.Error(err)
	}
	// With an identifier of its own it can be told apart, by OpenSSL and by Go.
	template.SubjectKeyId = nil
	template.Subject.ToRDNSequence()
	other := issue(t, nil, template, ecKey(t))
	if e, err = NewExternal(*a.options, encode(other.cert.Raw), nil, keyPEM(t, other.key)); err != nil {
		t.Fatal(err)
	}
	old := sign(t, a)
	change, err := a.BeginInstall(e)
	if err != nil {
		t.Fatal(err)
	}
	advance(t, a, change.ID, Signing)
	for _, shown := range []Certificate{old, sign(t, a)} {
		leaf(t, Certificate{Chain: shown.Chain, Roots: a.Roots()}, c.now)
		block, rest := pem.Decode(shown.Chain)
		if out, err := opensslVerify(t, a.Roots(), rest, pem.EncodeToMemory(block)); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// A member follows its primary, and nobody else: an intermediate of a root that was not announced is not taken into use.
func TestMemberFollowsAChange(t *testing.T) {
	c := &clock{start}
	primary := open(t, t.TempDir(), c)
	dir := t.TempDir()
	join(t, primary, "cluster2", dir, c)
	member := openMemberOf(t, dir, "cluster2", c)
	renew := func() error {
		return member.Renew(context.Background(), func(_ context.Context, request []byte) (Intermediate, error) {
			return primary.SignIntermediate(request, "cluster2", MembershipOf(member.state().current.certificate))
		})
	}
	before := member.Roots()
	change, err := primary.BeginRotation()
	if err != nil {
		t.Fatal(err)
	}
	advance(t, primary, change.ID, Signing)
	if err := renew(); err == nil || !strings.Contains(err.Error(), "not been announced") {
		t.Errorf("an intermediate of a root that nobody was told of: %v", err)
	}
	if !bytes.Equal(member.Roots(), before) {
		t.Error("the member trusts another root")
	}
	if _, err := member.BeginRotation(); !errors.Is(err, ErrNoRoot) {
		t.Error(err)
	}
	if _, err := member.Follow([]byte(change.Previous), []byte(change.Next)); err == nil {
		t.Error("the previous root is not this cluster's")
	}
	if _, err := primary.Follow([]byte(change.Next), []byte(change.Previous)); err == nil {
		t.Error("a primary follows somebody")
	}
	followed, err := member.Follow([]byte(change.Next), []byte(change.Previous))
	if err != nil || followed.ID != change.ID {
		t.Fatal(err)
	}
	member = openMemberOf(t, dir, "cluster2", c)
	old := sign(t, member)
	advance(t, member, change.ID, Signing)
	if err := member.Advance(change.ID, Retiring); err == nil {
		t.Error("it forgets the root of its own intermediate")
	}
	if err := renew(); err != nil {
		t.Fatal(err)
	}
	member = openMemberOf(t, dir, "cluster2", c)
	for _, shown := range []Certificate{old, sign(t, member)} {
		leaf(t, Certificate{Chain: shown.Chain, Roots: member.Roots()}, c.now)
	}
	advance(t, member, change.ID, Retiring)
	if got := member.Roots(); string(got) != change.Next {
		t.Errorf("roots\n%s", got)
	}
	if err := member.Finish(change.ID); err != nil {
		t.Fatal(err)
	}
}

// A change waits for the last certificate that nobody replaces, also when the controller was restarted in between.
func TestCertificatesForOutsidersAreRemembered(t *testing.T) {
	c := &clock{start}
	dir := t.TempDir()
	a := open(t, dir, c)
	_, request, err := NewRequest(cart, RSA2048, nil)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := a.SignOutside(request, cart, 10*time.Minute)
	if err != nil || !issued.Expires.Equal(start.Add(10*time.Minute)) {
		t.Fatal(issued.Expires, err)
	}
	a = open(t, dir, c)
	change, err := a.BeginRotation()
	if err != nil {
		t.Fatal(err)
	}
	advance(t, a, change.ID, Signing)
	got, _ := a.Change()
	if got.Until.Before(issued.Expires) || got.Until.After(issued.Expires.Add(time.Minute)) {
		t.Errorf("it waits until %s, the certificate lives until %s", got.Until, issued.Expires)
	}
}

func TestKindsOfKeys(t *testing.T) {
	c := &clock{start}
	a := open(t, t.TempDir(), c)
	for kind, want := range map[KeyType]x509.PublicKeyAlgorithm{ECDSAP256: x509.ECDSA, RSA2048: x509.RSA} {
		key, request, err := NewRequest(cart, kind, nil)
		if err != nil {
			t.Fatal(err)
		}
		issued, err := a.Sign(request, cart, 0)
		if err != nil {
			t.Fatal(err)
		}
		l := leaf(t, issued, c.now)
		block, _ := pem.Decode(key)
		parsed, err := parseKey(block.Bytes)
		if err != nil || l.PublicKeyAlgorithm != want || !belongs(parsed, l) {
			t.Errorf("%s: %v %v", kind, l.PublicKeyAlgorithm, err)
		}
	}
	for text, want := range map[string]KeyType{"": ECDSAP256, "ecdsa-p256": ECDSAP256, "rsa-2048": RSA2048} {
		if got, err := ParseKeyType(text); got != want || err != nil {
			t.Errorf("%q: %s %v", text, got, err)
		}
	}
	if _, err := ParseKeyType("rsa-1024"); err == nil {
		t.Error("rsa-1024 is a kind")
	}
}
