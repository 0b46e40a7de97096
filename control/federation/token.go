package federation

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"

	"heddle.io/heddle/control/server/client"
)

// tokenPrefix names the format; another format gets another number.
const tokenPrefix = "hdl1"

// Sizes of a token's parts, in bytes before encoding. 160 bits cannot be guessed, which is why a plain hash of the
// secret is kept and no slow one.
const (
	tokenIDBytes     = 8
	tokenSecretBytes = 20
)

// secretEncoding is lower-case base32, so that a token survives every shell, chat and terminal.
var secretEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Token lets one cluster join, once: hdl1.<id>.<secret>.<SHA-256 of the root's public key>. Printing it shows everything
// but the secret; [Token.Reveal] gives the text to hand over.
type Token struct {
	// ID finds the token at the primary; it is no secret.
	ID string
	// RootHash is the SHA-256 of the root's SubjectPublicKeyInfo, hexadecimal, by which the joining side knows the
	// primary before it sends the secret.
	RootHash string

	secret string
}

// newToken makes a token for a mesh.
func newToken(random io.Reader, rootHash string) (Token, error) {
	id, secret := make([]byte, tokenIDBytes), make([]byte, tokenSecretBytes)
	for _, part := range [][]byte{id, secret} {
		if _, err := io.ReadFull(random, part); err != nil {
			return Token{}, fmt.Errorf("make join token: %w", err)
		}
	}
	return Token{ID: hex.EncodeToString(id), RootHash: rootHash, secret: secretEncoding.EncodeToString(secret)}, nil
}

// Reveal gives the token as text.
func (t Token) Reveal() string {
	return strings.Join([]string{tokenPrefix, t.ID, t.secret, t.RootHash}, ".")
}

// String gives the token without its secret, for logs and messages.
func (t Token) String() string { return tokenPrefix + "." + t.ID }

// GoString is String, so that %#v shows no secret either.
func (t Token) GoString() string { return t.String() }

// hash is what the primary keeps of the secret.
func (t Token) hash() []byte {
	sum := sha256.Sum256([]byte(t.secret))
	return sum[:]
}

// ParseToken reads a token, with white space around it. The error is a [*client.Problem] and never repeats the text.
func ParseToken(text string) (Token, error) {
	fail := func(why string) (Token, error) {
		return Token{}, &client.Problem{Status: http.StatusBadRequest, What: "this is not a join token", Why: why,
			Remedy: "copy it whole, as `heddle up` or `heddle cluster token` printed it at the primary: " + tokenPrefix + ".<id>.<secret>.<hash>"}
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return fail("it is empty")
	}
	prefix, _, _ := strings.Cut(text, ".")
	if prefix != tokenPrefix {
		if len(prefix) <= 8 && strings.HasPrefix(prefix, "hdl") {
			return fail("it begins with " + prefix + ", and this program knows " + tokenPrefix)
		}
		return fail("it does not begin with " + tokenPrefix)
	}
	parts := strings.Split(text, ".")
	if len(parts) != 4 {
		return fail(fmt.Sprintf("it has %d parts instead of 4", len(parts)))
	}
	t := Token{ID: parts[1], secret: parts[2], RootHash: parts[3]}
	for _, part := range []struct {
		name, text string
		bytes      int
	}{{"id", t.ID, tokenIDBytes}, {"hash", t.RootHash, sha256.Size}} {
		raw, err := hex.DecodeString(part.text)
		if err != nil || len(raw) != part.bytes || part.text != strings.ToLower(part.text) {
			return fail(fmt.Sprintf("its %s is not %d hexadecimal digits", part.name, 2*part.bytes))
		}
	}
	// Only what newToken writes: base32 has several texts for one value otherwise.
	raw, err := secretEncoding.DecodeString(t.secret)
	if err != nil || len(raw) != tokenSecretBytes || secretEncoding.EncodeToString(raw) != t.secret {
		return fail(fmt.Sprintf("its secret is not %d letters and digits", secretEncoding.EncodedLen(tokenSecretBytes)))
	}
	return t, nil
}
