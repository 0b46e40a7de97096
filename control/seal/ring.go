// Package seal encrypts Secrets before they are stored: each by itself, with AES-256 in Galois/counter mode (NIST SP
// 800-38D), under a key that the record names, and bound to the object's place, so that one Secret's record is of no use in
// another's. The keys are in a file that only root reads, as they are or wrapped by a command that asks a key management
// service. It knows neither stores nor objects.
package seal

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

// Errors to be tested with errors.Is.
var (
	// ErrNoKey: there is no key to seal with.
	ErrNoKey = errors.New("there is no key to encrypt Secrets with")
	// ErrClosed: a record does not open, for want of its key or because it was changed.
	ErrClosed = errors.New("the Secret cannot be decrypted")
)

// prefix begins a sealed record, "sealed:<key id>:<nonce, ciphertext, tag>"; a JSON document never begins like this.
var prefix = []byte("sealed:")

// keyBytes is the length of a key of AES-256, and maxID that of a key's identifier.
const (
	keyBytes = 32
	maxID    = 16
)

// Options of a [Ring].
type Options struct {
	// File holds the keys, see [Open].
	File string
	// Command wraps new keys; empty leaves them in the file as they are. See [command] for what it must do.
	Command string
	// Memory outlives the process that uses the ring and nothing else, see [Memory]; nil for none.
	Memory *os.File
	// Now is the clock; nil for the system's.
	Now func() time.Time
}

// Ring are the keys that records are sealed with: one for new records, others that older ones still name. It is safe for
// concurrent use.
type Ring struct {
	options Options

	// changing is held over every change of the keys, with the reading and the writing of the file; before mu.
	changing sync.Mutex

	mu   sync.RWMutex
	keys keyFile
	// store is whose records are sealed, empty for one in the cluster's data.
	store string
	// open are the keys that can be used, by their identifier, and shut why others cannot.
	open map[string]opened
	shut map[string]error
	// versions are those of [Ring.Versions], and given how many there were.
	versions map[string]uint64
	given    uint64
}

// opened is a key that can be used.
type opened struct {
	cipher.AEAD
	secret []byte
	// kept says why it is the one of [Options.Memory], nil when file and command give it.
	kept error
}

// Open reads the keys. Without the file the ring is empty until [Ring.Add]. A file that others than its owner may read is
// an error, and so is one that is damaged; a key that its command does not unwrap is none, but opens nothing until
// [Ring.Reload] has better luck.
func Open(ctx context.Context, o Options) (*Ring, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Command != "" {
		if err := (command{path: o.Command}).check(); err != nil {
			return nil, err
		}
	}
	r := &Ring{options: o}
	_, err := r.Reload(ctx)
	return r, err
}

// Reload reads the file again, and has wrapped keys unwrapped that were not before. It says whether other keys can be used
// than before. A key that is not in the file any more stays in use until [Ring.Retain] forgets it: a file that is lost, or
// that an older copy has replaced, takes no Secret with it while somebody still has its key.
func (r *Ring) Reload(ctx context.Context) (changed bool, err error) {
	r.changing.Lock()
	defer r.changing.Unlock()
	return r.reload(ctx)
}

func (r *Ring) reload(ctx context.Context) (changed bool, err error) {
	keys, err := readKeys(r.options.File)
	if err != nil {
		return false, err
	}
	r.mu.RLock()
	before, had := r.keys, r.open
	r.mu.RUnlock()
	if had == nil {
		before, had = r.recall()
	}
	var missing []key
	for _, k := range before.Keys {
		if _, usable := had[k.ID]; usable && keys.find(k.ID) == nil {
			missing = append(missing, k)
		}
	}
	keys.Keys = append(missing, keys.Keys...)
	if keys.Primary == "" {
		keys.Primary = before.Primary
	}
	if keys.find(keys.Primary) == nil {
		keys.Primary = "" // It never opened, and is gone.
	}
	open, shut := map[string]opened{}, map[string]error{}
	var anew []string
	for n, k := range keys.Keys {
		old, known := had[k.ID]
		if was := before.find(k.ID); was == nil || !was.same(k) {
			known = false
		}
		if n < len(missing) {
			old.kept = errNotInFile
			open[k.ID] = old
			continue
		}
		if known && old.kept == nil {
			// What is open needs no command once more.
			open[k.ID] = old
			continue
		}
		secret, err := k.secret(ctx)
		var aead cipher.AEAD
		if err == nil {
			aead, err = newAEAD(secret)
		}
		switch {
		case err == nil:
			open[k.ID] = opened{AEAD: aead, secret: secret}
			anew = append(anew, k.ID)
		case known:
			old.kept = err
			open[k.ID] = old
		default:
			shut[k.ID] = err
			if why := r.shut[k.ID]; why == nil || why.Error() != err.Error() {
				anew = append(anew, k.ID)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = !slices.Equal(slices.Sorted(maps.Keys(open)), slices.Sorted(maps.Keys(r.open))) || keys.Primary != r.keys.Primary
	r.keys, r.open, r.shut = keys, open, shut
	r.renew(anew...)
	return changed, r.remember()
}

// Claim says whose records are sealed from now on: those of a store outside of the cluster's data, by a name that is its
// own. The file says so on the disk before it returns, and the keys that the store may need are kept for it, whoever
// uses the file meanwhile.
func (r *Ring) Claim(store string) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.store = store
	if err := r.write(r.keys); err != nil {
		return err
	}
	return r.remember()
}

// write has these keys, with what the store claims of them, in the file and in memory; changing and mu are held.
func (r *Ring) write(next keyFile) error {
	next.Keys = slices.Clone(next.Keys)
	claimed := r.store != "" && next.claim(r.store)
	if there, err := readKeys(r.options.File); err != nil {
		return err
	} else if claimed || !there.equal(next) {
		if err := next.write(r.options.File); err != nil {
			return err
		}
	}
	r.keys = next
	// Another map, as in [Ring.Add]: what was not in the file is.
	r.open = maps.Clone(r.open)
	for id, k := range r.open {
		if errors.Is(k.kept, errNotInFile) {
			k.kept = nil
			r.open[id] = k
		}
	}
	return nil
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	// A nonce of 96 random bits: good for 2^32 records under a key (SP 800-38D, section 8.3), which a store never has.
	return cipher.NewGCMWithRandomNonce(block)
}

// Versions are numbers of the keys that the ring knows, by their identifiers. What [Ring.Open] says of a record is the same as
// long as its key has the same number, or none.
func (r *Ring) Versions() map[string]uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return maps.Clone(r.versions)
}

// renew gives keys other numbers, and takes those of keys that are gone; mu is held.
func (r *Ring) renew(ids ...string) {
	if r.versions == nil {
		r.versions = map[string]uint64{}
	}
	for _, id := range ids {
		r.given++
		r.versions[id] = r.given
	}
	maps.DeleteFunc(r.versions, func(id string, _ uint64) bool { return r.keys.find(id) == nil })
}

// Empty says that there is no key at all.
func (r *Ring) Empty() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.keys.Keys) == 0
}

// Primary is the identifier of the key that new records are sealed with, empty without one.
func (r *Ring) Primary() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.keys.Primary
}

// Usable says that new records can be sealed.
func (r *Ring) Usable() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, usable := r.open[r.keys.Primary]
	return usable
}

// Several says that the store has keys beside the primary: a rotation has not come to its end.
func (r *Ring) Several() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.several()
}

// several is [Ring.Several] with mu held. Keys that are kept for other stores alone are none of this one's.
func (r *Ring) several() bool {
	return slices.ContainsFunc(r.keys.Keys, func(k key) bool {
		return k.ID != r.keys.Primary && (len(k.Stores) == 0 || slices.Contains(k.Stores, r.store))
	})
}

// File is where the keys are.
func (r *Ring) File() string { return r.options.File }

// Add makes a key, on the disk before it is used, and has new records sealed with it. Older ones stay as they are.
func (r *Ring) Add(ctx context.Context) error {
	secret, id := make([]byte, keyBytes), make([]byte, 4)
	for _, random := range [][]byte{secret, id} {
		if _, err := rand.Read(random); err != nil {
			return fmt.Errorf("make a key: %w", err)
		}
	}
	k := key{ID: hex.EncodeToString(id), Created: r.options.Now().UTC().Truncate(time.Second)}
	if err := k.keep(ctx, secret, r.options.Command); err != nil {
		return err
	}
	aead, err := newAEAD(secret)
	if err != nil {
		return err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	// As others may have left the file.
	if _, err := r.reload(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	next := keyFile{Primary: k.ID, Keys: append(slices.Clone(r.keys.Keys), k)}
	if err := r.write(next); err != nil {
		return err
	}
	// Another map: a reload may be reading the one before.
	open := maps.Clone(r.open)
	open[k.ID] = opened{AEAD: aead, secret: secret}
	r.open = open
	r.renew(k.ID)
	return r.remember()
}

// Retain forgets every key but the primary, those named, and those that other stores may need; the file is written again if
// it is not what it should be.
func (r *Ring) Retain(ids ...string) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	// As others may have left the file: a key that is named there and not known here is not to be forgotten.
	there, err := readKeys(r.options.File)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range there.Keys {
		if r.keys.find(k.ID) == nil {
			return fmt.Errorf("key %s in %s is not one that this controller knows: run `heddle secrets rotate` again", k.ID, r.options.File)
		}
	}
	next := keyFile{Primary: r.keys.Primary}
	for _, k := range r.keys.Keys {
		named := k.ID == next.Primary || slices.Contains(ids, k.ID)
		if !named {
			// A key of nobody but this store is of nobody now.
			others := slices.DeleteFunc(slices.Clone(k.Stores), func(s string) bool { return s == r.store })
			if k.Stores = others; len(others) == 0 {
				continue
			}
		}
		next.Keys = append(next.Keys, k)
	}
	if err := r.write(next); err != nil {
		return err
	}
	// Other maps: a reload may be reading those before.
	open, shut := maps.Clone(r.open), maps.Clone(r.shut)
	maps.DeleteFunc(open, func(id string, _ opened) bool { return r.keys.find(id) == nil })
	maps.DeleteFunc(shut, func(id string, _ error) bool { return r.keys.find(id) == nil })
	r.open, r.shut = open, shut
	r.renew()
	return r.remember()
}

// Seal encrypts a value that is to lie at a place.
func (r *Ring) Seal(value []byte, place string) ([]byte, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	id := r.keys.Primary
	aead, usable := r.open[id]
	if !usable {
		if why := r.shut[id]; why != nil {
			return nil, fmt.Errorf("%w: key %s of %s: %w", ErrNoKey, id, r.options.File, why)
		}
		return nil, fmt.Errorf("%w: %s holds none; restore the file, or run `heddle secrets rotate` to go on with a new key", ErrNoKey, r.options.File)
	}
	out := append(bytes.Clone(prefix), id+":"...)
	return aead.Seal(out, nil, value, []byte(place)), nil
}

// Open gives the value of a sealed record. The errors are of [ErrClosed] and say what to do.
func (r *Ring) Open(record []byte, place string) ([]byte, error) {
	id, box, ok := split(record)
	if !ok {
		return nil, fmt.Errorf("%w: its record is damaged; apply it again", ErrClosed)
	}
	r.mu.RLock()
	aead, usable := r.open[id]
	why := r.shut[id]
	r.mu.RUnlock()
	if !usable {
		if why != nil {
			return nil, fmt.Errorf("%w: its key %s in %s: %w", ErrClosed, id, r.options.File, why)
		}
		return nil, fmt.Errorf("%w: its key %s is not in %s; restore the file from the backup that goes with the data; without one, `heddle secrets rotate` goes on with a new key, and after that apply the Secret again", ErrClosed, id, r.options.File)
	}
	value, err := aead.Open(nil, nil, box, []byte(place))
	if err != nil {
		return nil, fmt.Errorf("%w: its record was changed, moved from another Secret's place, or sealed with another key that is called %s too; apply it again", ErrClosed, id)
	}
	return value, nil
}

// KeyOf is the identifier of the key that a stored value is sealed with; false when the value is not sealed.
func KeyOf(value []byte) (id string, sealed bool) {
	if !bytes.HasPrefix(value, prefix) {
		return "", false
	}
	id, _, _ = split(value)
	return id, true
}

func split(record []byte) (id string, box []byte, ok bool) {
	rest, ok := bytes.CutPrefix(record, prefix)
	if !ok {
		return "", nil, false
	}
	name, box, ok := bytes.Cut(rest, []byte(":"))
	if !ok || len(name) == 0 || len(name) > maxID {
		return "", nil, false
	}
	return string(name), box, true
}
