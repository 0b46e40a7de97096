package federation

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

var someHash = strings.Repeat("0a", 32)

func TestTokenText(t *testing.T) {
	token, err := newToken(rand.Reader, someHash)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseToken("  " + token.Reveal() + "\n")
	if err != nil || again != token {
		t.Fatalf("%v %v", again, err)
	}
	secret := strings.Split(token.Reveal(), ".")[2]
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, token); strings.Contains(text, secret) {
			t.Errorf("%s shows the secret: %s", format, text)
		}
	}
	parts := strings.Split(token.Reveal(), ".")
	for name, text := range map[string]string{
		"nothing": "", "another program's": "eyJhbGciOi.x.y.z", "a later version's": strings.Replace(token.Reveal(), "hdl1", "hdl2", 1),
		"a part missing": strings.Join(parts[:3], "."), "a part more": token.Reveal() + ".x", "a short id": spoil(token.Reveal(), 1, "ab"),
		"an upper-case id": spoil(token.Reveal(), 1, "ABCDEF0123456789"), "a short secret": spoil(token.Reveal(), 2, secret[:31]),
		"a long secret": spoil(token.Reveal(), 2, secret+"a"), "a strange secret": spoil(token.Reveal(), 2, strings.Repeat("1", 32)),
		"a short hash": token.Reveal()[:len(token.Reveal())-2], "no hash": spoil(token.Reveal(), 3, ""),
	} {
		_, err := ParseToken(text)
		problem := asProblem(t, err, "not a join token")
		if len(text) > 20 && strings.Contains(problem.Error(), secret) {
			t.Errorf("%s: the message repeats the secret", name)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	token, err := newToken(rand.Reader, someHash)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token.Reveal())
	f.Add("hdl1...")
	f.Add("hdl2.0011223344556677.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa." + someHash)
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := ParseToken(text)
		if err == nil && parsed.Reveal() != strings.TrimSpace(text) {
			t.Errorf("%q was read as %q", text, parsed.Reveal())
		}
	})
}

func TestTokensAreKeptHashedAndBounded(t *testing.T) {
	c := &clock{}
	p := newNode(t, "cluster1", newLink(), c)
	text := p.token()
	token, err := ParseToken(text)
	if err != nil || token.RootHash != p.authority.RootHash() {
		t.Fatalf("%v %v", token, err)
	}
	o, err := p.store.Get(context.Background(), tokenKey(token.ID))
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(o)
	if err != nil || bytes.Contains(content, []byte(token.secret)) {
		t.Errorf("the secret is in the store: %v", err)
	}
	if errs := objects.CheckForm(o); len(errs) > 0 {
		t.Error(errs)
	}
	for range maxTokens - 1 {
		p.token()
	}
	_, err = p.f.Token(context.Background(), client.TokenRequest{})
	failsWith(t, err, "64 join tokens that nobody used")
	c.advance(defaultTTL + time.Second)
	response, err := p.f.Token(context.Background(), client.TokenRequest{TTL: 24 * time.Hour})
	if err != nil || response.Expires.Sub(c.Now()) < 24*time.Hour-time.Minute || response.Address != p.address {
		t.Fatalf("%+v %v", response, err)
	}
	for _, ttl := range []time.Duration{-time.Hour, time.Millisecond, maxTTL + 1} {
		_, err := p.f.Token(context.Background(), client.TokenRequest{TTL: ttl})
		failsWith(t, err, "cannot live")
	}
}

func TestGuessingIsBounded(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	good, target := p.token(), p.token()
	wrong := spoil(target, 2, strings.Repeat("a", 32))
	for range maxWrongSecrets {
		_, err := joinAs(t, p, "x", p.address, wrong)
		failsWith(t, err, "not known")
	}
	// This one token is locked now, even for who knows its secret.
	_, err := joinAs(t, p, "x", p.address, target)
	failsWith(t, err, "locked")
	busy := 0
	for range failureBurst {
		if _, err := joinAs(t, p, "x", p.address, spoil(wrong, 1, "0123456789abcdef")); strings.Contains(asProblem(t, err, "").What, "too many attempts") {
			busy++
		}
	}
	if busy == 0 {
		t.Error("guessing goes on for ever")
	}
	// Who has a good token is not affected.
	if _, err := joinAs(t, p, "x", p.address, good); err != nil {
		t.Fatal(err)
	}
}
