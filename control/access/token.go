package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

// TokenSecretType is the type of the Secrets, in istio-system, that hold what is kept of an API token: a hash, never the
// token. Deleting one revokes the token.
const TokenSecretType corev1.SecretType = "heddle.io/api-token"

// Bounds of tokens.
const (
	DefaultTokenTTL = 24 * time.Hour
	MaxTokenTTL     = 365 * 24 * time.Hour
	maxTokens       = 1024
	maxNote         = 64
	// tokenMemory is how long an expired token is still called expired and not unknown.
	tokenMemory = time.Hour
)

// tokenPrefix names the format: hda1.<id>.<secret>. It differs from that of join tokens, so that scanners for leaked secrets
// and people tell them apart.
const tokenPrefix = "hda1"

// 160 bits of secret cannot be guessed, which is why a plain hash is kept and no slow one.
const (
	tokenIDBytes     = 8
	tokenSecretBytes = 20
)

var secretEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Fields of a token's Secret.
const (
	fieldHash      = "hash"
	fieldRole      = "role"
	fieldNamespace = "namespace"
	fieldExpires   = "expires"
	fieldNote      = "note"
	fieldMaker     = "made-by"
)

const tokenNamePrefix = "api-token-"

func tokenKey(id string) objects.Key {
	return objects.Key{Kind: objects.Secret.Kind, Namespace: cluster.GatewayNamespace, Name: tokenNamePrefix + id}
}

// Tokens are the API's tokens, in the store.
type Tokens struct {
	Store store.Batch
	Now   func() time.Time
}

// kept is what is kept of a token.
type kept struct {
	client.APIToken
	hash []byte
	role Role
}

func readToken(o *objects.Object) (kept, error) {
	secret, ok := o.Resource.(*corev1.Secret)
	if !ok || secret.Type != TokenSecretType {
		return kept{}, fmt.Errorf("%s is no API token", o.Key())
	}
	text := func(field string) string { return string(secret.Data[field]) }
	k := kept{hash: secret.Data[fieldHash], APIToken: client.APIToken{
		ID: strings.TrimPrefix(o.GetName(), tokenNamePrefix), Note: text(fieldNote), Role: text(fieldRole), Namespace: text(fieldNamespace),
		MadeBy: text(fieldMaker), Made: o.GetCreationTimestamp().UTC(),
	}}
	var err error
	if k.role, err = ParseRole(k.Role); err != nil {
		return kept{}, fmt.Errorf("%s: %w", o.Key(), err)
	}
	if k.Namespace == "" {
		return kept{}, fmt.Errorf("%s has no namespace", o.Key())
	}
	if k.Expires, err = time.Parse(time.RFC3339, text(fieldExpires)); err != nil {
		return kept{}, fmt.Errorf("%s: %w", o.Key(), err)
	}
	return k, nil
}

// Check says whether a token could be made like that.
func (t *Tokens) Check(request client.APITokenRequest) error {
	refuse := func(what, remedy string) error {
		return &client.Problem{Status: http.StatusBadRequest, What: what, Remedy: remedy}
	}
	if _, err := ParseRole(request.Role); err != nil {
		return refuse("no token was made: "+err.Error(), "")
	}
	if request.Namespace == "" {
		return refuse("no token was made: it needs a namespace", "name one, or all with --all-namespaces")
	}
	if ttl := request.TTL; ttl != 0 && (ttl < time.Second || ttl > MaxTokenTTL) {
		return refuse(fmt.Sprintf("a token cannot live for %s", ttl), fmt.Sprintf("choose at most %d days", MaxTokenTTL/(24*time.Hour)))
	}
	if len(request.Note) > maxNote || strings.ContainsFunc(request.Note, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return refuse("the token's name cannot be kept", fmt.Sprintf("use at most %d printable characters", maxNote))
	}
	return nil
}

// Make makes a token and returns its text, which is not kept.
func (t *Tokens) Make(ctx context.Context, request client.APITokenRequest, maker string) (client.APITokenResponse, error) {
	var none client.APITokenResponse
	if err := t.Check(request); err != nil {
		return none, err
	}
	if request.TTL == 0 {
		request.TTL = DefaultTokenTTL
	}
	all, err := t.list(ctx)
	if err != nil {
		return none, err
	}
	if len(all) >= maxTokens {
		return none, &client.Problem{Status: http.StatusTooManyRequests, What: fmt.Sprintf("there are %d tokens, which is the most", len(all)), Remedy: "revoke some: `heddle token list`, `heddle token revoke <id>`"}
	}
	id, secret := make([]byte, tokenIDBytes), make([]byte, tokenSecretBytes)
	// They never fail, see crypto/rand.
	_, _ = rand.Read(id)
	_, _ = rand.Read(secret)
	name, text := hex.EncodeToString(id), secretEncoding.EncodeToString(secret)
	now := t.Now().UTC().Truncate(time.Second)
	expires := now.Add(request.TTL)
	sum := sha256.Sum256([]byte(text))
	o := &objects.Object{Kind: objects.Secret, Origin: objects.Origin{User: maker}, Resource: &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.GatewayNamespace, Name: tokenKey(name).Name},
		Type:       TokenSecretType,
		Data: map[string][]byte{fieldHash: sum[:], fieldRole: []byte(request.Role), fieldNamespace: []byte(request.Namespace),
			fieldExpires: []byte(expires.Format(time.RFC3339)), fieldNote: []byte(request.Note), fieldMaker: []byte(maker)},
	}}
	objects.SetCreated(o, nil, metav1.NewTime(now), name, true)
	if err := t.Store.Apply(ctx, []store.Write{{Key: o.Key(), Object: o, IfVersion: store.Absent}}); err != nil {
		return none, fmt.Errorf("keep token: %w", err)
	}
	made := client.APIToken{ID: name, Note: request.Note, Role: request.Role, Namespace: request.Namespace, MadeBy: maker, Made: now, Expires: expires}
	return client.APITokenResponse{APIToken: made, Token: strings.Join([]string{tokenPrefix, name, text}, ".")}, nil
}

// List gives the tokens that can be used, and removes those that expired a while ago.
func (t *Tokens) List(ctx context.Context) ([]client.APIToken, error) {
	all, err := t.list(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]client.APIToken, 0, len(all))
	for _, k := range all {
		out = append(out, k.APIToken)
	}
	slices.SortFunc(out, func(a, b client.APIToken) int { return a.Made.Compare(b.Made) })
	return out, nil
}

func (t *Tokens) list(ctx context.Context) ([]kept, error) {
	secrets, _, err := t.Store.List(ctx, objects.Secret, cluster.GatewayNamespace)
	if err != nil {
		return nil, fmt.Errorf("read tokens: %w", err)
	}
	var out []kept
	var writes []store.Write
	for _, o := range secrets {
		if secret, ok := o.Resource.(*corev1.Secret); !ok || secret.Type != TokenSecretType {
			continue
		}
		k, err := readToken(o)
		if err != nil || t.Now().After(k.Expires.Add(tokenMemory)) {
			// One that cannot be read admits nobody, either.
			writes = append(writes, store.Write{Key: o.Key(), IfVersion: o.Version})
			continue
		}
		out = append(out, k)
	}
	if len(writes) == 0 {
		return out, nil
	}
	// What cannot be removed now is removed the next time: it is of no use to anybody.
	if err := t.Store.Apply(ctx, writes); err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrUnavailable) {
		return nil, fmt.Errorf("remove expired tokens: %w", err)
	}
	return out, nil
}

// Find gives one token by its id, or a [*client.Problem] with status 404.
func (t *Tokens) Find(ctx context.Context, id string) (client.APIToken, error) {
	missing := &client.Problem{Status: http.StatusNotFound, What: "there is no such token", Where: id, Remedy: "`heddle token list` shows the ids"}
	if !isID(id) {
		return client.APIToken{}, missing
	}
	o, err := t.Store.Get(ctx, tokenKey(id))
	if errors.Is(err, store.ErrNotFound) {
		return client.APIToken{}, missing
	}
	if err != nil {
		return client.APIToken{}, err
	}
	k, err := readToken(o)
	return k.APIToken, err
}

// Revoke ends a token at once.
func (t *Tokens) Revoke(ctx context.Context, id string) error {
	return t.Store.Apply(ctx, []store.Write{{Key: tokenKey(id)}})
}

func isID(id string) bool {
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == tokenIDBytes && strings.ToLower(id) == id
}

// unauthorized is the answer to a token that is none. It never repeats what was shown.
func unauthorized(what, why, remedy string) error {
	return &client.Problem{Status: http.StatusUnauthorized, What: what, Why: why, Remedy: remedy}
}

const anotherToken = "an admin makes one with `heddle token create`"

// caller is who shows a token (without the scheme). The error is a [*client.Problem] with status 401, or the store's.
func (t *Tokens) caller(ctx context.Context, text string) (*Caller, error) {
	parts := strings.Split(text, ".")
	if len(parts) != 3 || parts[0] != tokenPrefix || !isID(parts[1]) || len(parts[2]) != secretEncoding.EncodedLen(tokenSecretBytes) {
		return nil, unauthorized("this is not a token of the API", "it does not read "+tokenPrefix+".<id>.<secret>", "copy it whole; "+anotherToken)
	}
	unknown := unauthorized("the token is not known", "it was never made here, was revoked, or expired long ago", anotherToken)
	sum := sha256.Sum256([]byte(parts[2]))
	o, err := t.Store.Get(ctx, tokenKey(parts[1]))
	if errors.Is(err, store.ErrNotFound) {
		return nil, unknown
	}
	if err != nil {
		return nil, fmt.Errorf("look for the token: %w", err)
	}
	k, err := readToken(o)
	if err != nil || subtle.ConstantTimeCompare(sum[:], k.hash) != 1 {
		return nil, unknown
	}
	if t.Now().After(k.Expires) {
		return nil, unauthorized("the token has expired", "it could be used until "+k.Expires.UTC().Format(time.RFC3339), anotherToken)
	}
	return &Caller{Kind: KindToken, Name: k.ID, Note: k.Note, UID: -1, Grants: Grants{{Role: k.role, Namespace: k.Namespace}}}, nil
}
