package federation

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

// TokenSecretType is the type of the Secrets, in istio-system, that hold what a primary keeps of a join token: a hash,
// never the token. Deleting one revokes the token.
const TokenSecretType corev1.SecretType = "heddle.io/join-token"

// Bounds of tokens.
const (
	defaultTTL = time.Hour
	maxTTL     = 7 * 24 * time.Hour
	// maxTokens can be used at a time.
	maxTokens = 64
	// tokenMemory is how long an expired token is still called expired and not unknown.
	tokenMemory = time.Hour
	// maxWrongSecrets is how often the secret of one token may be wrong before it is locked, until the controller restarts.
	// Who has a token's id but not its secret can lock that token, and no other.
	maxWrongSecrets = 10
)

// Attempts with unknown tokens are told so up to a rate; beyond it, only that there are too many. The rate holds back nobody
// with a good token.
const (
	failureBurst    = 20
	failureInterval = 3 * time.Second
)

// Fields of a token's Secret.
const (
	fieldHash    = "hash"
	fieldExpires = "expires"
	fieldUsedBy  = "used-by"
	fieldUsedKey = "used-key"
	fieldUsedAt  = "used-at"
)

// tokens are a primary's join tokens.
type tokens struct {
	store    store.Batch
	now      func() time.Time
	random   io.Reader
	failures *rate.Limiter

	mu sync.Mutex
	// wrong counts wrong secrets by the id of tokens that exist.
	wrong map[string]int
}

func newTokens(s store.Batch, now func() time.Time, random io.Reader) *tokens {
	if random == nil {
		random = rand.Reader
	}
	return &tokens{store: s, now: now, random: random, failures: rate.NewLimiter(rate.Every(failureInterval), failureBurst), wrong: map[string]int{}}
}

func tokenKey(id string) objects.Key {
	return objects.Key{Kind: objects.Secret.Kind, Namespace: cluster.GatewayNamespace, Name: "join-token-" + id}
}

// kept token, as its Secret says.
type keptToken struct {
	object  *objects.Object
	hash    []byte
	expires time.Time
	usedBy  string
	usedKey string
	usedAt  string
}

func readToken(o *objects.Object) (keptToken, error) {
	secret, ok := o.Resource.(*corev1.Secret)
	if !ok || secret.Type != TokenSecretType {
		return keptToken{}, fmt.Errorf("%s is no join token", o.Key())
	}
	t := keptToken{object: o, hash: secret.Data[fieldHash], usedBy: string(secret.Data[fieldUsedBy]), usedKey: string(secret.Data[fieldUsedKey]), usedAt: string(secret.Data[fieldUsedAt])}
	var err error
	if t.expires, err = time.Parse(time.RFC3339, string(secret.Data[fieldExpires])); err != nil {
		return keptToken{}, fmt.Errorf("%s: %w", o.Key(), err)
	}
	return t, nil
}

// list gives all tokens and sweeps those that expired long ago. It returns how many it swept.
func (t *tokens) list(ctx context.Context) (all []keptToken, swept int, err error) {
	secrets, _, err := t.store.List(ctx, objects.Secret, cluster.GatewayNamespace)
	if err != nil {
		return nil, 0, err
	}
	var writes []store.Write
	for _, o := range secrets {
		if secret, ok := o.Resource.(*corev1.Secret); !ok || secret.Type != TokenSecretType {
			continue
		}
		kept, err := readToken(o)
		if err != nil || t.now().After(kept.expires.Add(tokenMemory)) {
			// One that cannot be read can admit nobody, either.
			writes = append(writes, store.Write{Key: o.Key(), IfVersion: o.Version})
			continue
		}
		all = append(all, kept)
	}
	if len(writes) == 0 {
		return all, 0, nil
	}
	if err := t.store.Apply(ctx, writes); err != nil {
		if errors.Is(err, store.ErrConflict) {
			return all, 0, nil // One of them was used or deleted meanwhile; the next sweep sees.
		}
		return nil, 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range writes {
		delete(t.wrong, w.Key.Name)
	}
	return all, len(writes), nil
}

// mint makes a token.
func (t *tokens) mint(ctx context.Context, rootHash string, ttl time.Duration, origin objects.Origin) (Token, time.Time, error) {
	if ttl == 0 {
		ttl = defaultTTL
	}
	if ttl < time.Second || ttl > maxTTL {
		return Token{}, time.Time{}, &client.Problem{Status: http.StatusBadRequest, What: fmt.Sprintf("a token cannot live for %s", ttl), Remedy: fmt.Sprintf("choose at most %s", maxTTL)}
	}
	all, _, err := t.list(ctx)
	if err != nil {
		return Token{}, time.Time{}, err
	}
	usable := slices.DeleteFunc(all, func(k keptToken) bool { return k.usedBy != "" || t.now().After(k.expires) })
	if len(usable) >= maxTokens {
		return Token{}, time.Time{}, &client.Problem{Status: http.StatusTooManyRequests, What: fmt.Sprintf("there are %d join tokens that nobody used yet", len(usable)),
			Remedy: "use one of them, wait until some expire, or revoke them: `heddle delete secret join-token-<id> -n " + cluster.GatewayNamespace + "`"}
	}
	token, err := newToken(t.random, rootHash)
	if err != nil {
		return Token{}, time.Time{}, err
	}
	now := t.now().UTC().Truncate(time.Second)
	expires := now.Add(ttl)
	o := &objects.Object{Kind: objects.Secret, Origin: origin, Resource: &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.GatewayNamespace, Name: tokenKey(token.ID).Name},
		Type:       TokenSecretType,
		Data:       map[string][]byte{fieldHash: token.hash(), fieldExpires: []byte(expires.Format(time.RFC3339))},
	}}
	objects.SetCreated(o, nil, metav1.NewTime(now), token.ID, true)
	if err := t.store.Apply(ctx, []store.Write{{Key: o.Key(), Object: o, IfVersion: store.Absent}}); err != nil {
		return Token{}, time.Time{}, fmt.Errorf("keep join token: %w", err)
	}
	return token, expires, nil
}

// find gives a token by what a joining cluster shows. The error is a refusal, or the store's.
func (t *tokens) find(ctx context.Context, id, secret string) (keptToken, error) {
	unknown := refuse(pb.Refusal_TOKEN_UNKNOWN, "the token is not known", "it was never made here, was revoked, or expired long ago", "`heddle cluster token` at the primary makes a new one")
	shown := Token{ID: id, secret: secret}
	o, err := t.store.Get(ctx, tokenKey(id))
	if errors.Is(err, store.ErrNotFound) {
		// As much work as for one that is known.
		subtle.ConstantTimeCompare(shown.hash(), make([]byte, 32))
		return keptToken{}, unknown
	}
	if err != nil {
		return keptToken{}, err
	}
	kept, err := readToken(o)
	if err != nil {
		return keptToken{}, unknown
	}
	name := o.GetName()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wrong[name] >= maxWrongSecrets {
		return keptToken{}, refuse(pb.Refusal_TOKEN_UNKNOWN, "the token is locked", "it was tried with wrong secrets too often", "`heddle cluster token` at the primary makes a new one")
	}
	if subtle.ConstantTimeCompare(shown.hash(), kept.hash) != 1 {
		t.wrong[name]++
		return keptToken{}, unknown
	}
	if t.now().After(kept.expires) {
		return keptToken{}, refuse(pb.Refusal_TOKEN_EXPIRED, "the token has expired", "it could be used until "+kept.expires.UTC().Format(time.RFC3339), "`heddle cluster token` at the primary makes a new one")
	}
	return kept, nil
}

// used gives the write that marks a token as used, on condition that nobody used it meanwhile.
func (k keptToken) used(name, key string, at time.Time) (store.Write, error) {
	o := k.object.DeepCopy()
	secret, ok := o.Resource.(*corev1.Secret)
	if !ok {
		return store.Write{}, fmt.Errorf("%s is no Secret", o.Key())
	}
	secret.Data[fieldUsedBy], secret.Data[fieldUsedKey], secret.Data[fieldUsedAt] = []byte(name), []byte(key), []byte(at.UTC().Format(time.RFC3339))
	o.SetGeneration(o.GetGeneration() + 1)
	return store.Write{Key: o.Key(), Object: o, IfVersion: k.object.Version}, nil
}
