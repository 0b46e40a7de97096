package seal

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"heddle.io/heddle/control/durable"
)

// keyFile is what the file holds. It is written whole and synced before a key is used.
type keyFile struct {
	// Primary is the identifier of the key for new records.
	Primary string `json:"primary"`
	Keys    []key  `json:"keys"`
}

// key is one of them: as it is in base64, or wrapped by a command.
type key struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Key     string    `json:"key,omitempty"`
	Wrapped string    `json:"wrapped,omitempty"`
	// Command wrapped the key and unwraps it, whichever wraps new ones.
	Command string `json:"command,omitempty"`
	// Stores are those outside of the cluster's data that may hold records under the key. While there is one, the key is
	// neither forgotten by a rotation in another store nor removed with the cluster.
	Stores []string `json:"stores,omitempty"`
}

// String and GoString keep a key out of whatever prints one.
func (k key) String() string   { return "key " + k.ID }
func (k key) GoString() string { return k.String() }

func (k key) same(other key) bool {
	return k.Key == other.Key && k.Wrapped == other.Wrapped && k.Command == other.Command
}

// claim notes that a store may hold records under its own keys: those that no store named so far, and the one that seals
// new records. It says whether that is news.
func (f *keyFile) claim(store string) bool {
	changed := false
	for i := range f.Keys {
		k := &f.Keys[i]
		if (len(k.Stores) == 0 || k.ID == f.Primary) && !slices.Contains(k.Stores, store) {
			k.Stores, changed = append(slices.Clone(k.Stores), store), true
		}
	}
	return changed
}

// ForOthers says whether a file has keys that stores elsewhere may need: those that claimed one ([Ring.Claim]). A file that
// cannot be read may have some; one that is not there has none.
func ForOthers(file string) bool {
	f, err := readKeys(file)
	return err != nil || slices.ContainsFunc(f.Keys, func(k key) bool { return len(k.Stores) > 0 })
}

// equal says whether two files say the same.
func (f keyFile) equal(other keyFile) bool {
	return f.Primary == other.Primary && slices.EqualFunc(f.Keys, other.Keys, func(a, b key) bool {
		return a.ID == b.ID && a.Created.Equal(b.Created) && a.same(b) && slices.Equal(a.Stores, b.Stores)
	})
}

func (f keyFile) find(id string) *key {
	for i := range f.Keys {
		if f.Keys[i].ID == id {
			return &f.Keys[i]
		}
	}
	return nil
}

// firstID is the identifier of the only key that a file of bare bytes holds, as the first versions wrote it.
const firstID = "1"

func readKeys(path string) (keyFile, error) {
	var f keyFile
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	var content []byte
	if err == nil {
		if mode := info.Mode().Perm(); mode&0o077 != 0 {
			return f, fmt.Errorf("the keys of Secrets in %s may be read by others than their owner (mode %04o): run `chmod 0600 %[1]s`, and `heddle secrets rotate` if somebody may have", path, mode)
		}
		content, err = os.ReadFile(path)
	}
	if err != nil {
		return f, fmt.Errorf("read the keys of Secrets: %w", err)
	}
	if len(content) == keyBytes {
		return keyFile{Primary: firstID, Keys: []key{{ID: firstID, Created: info.ModTime().UTC().Truncate(time.Second), Key: base64.StdEncoding.EncodeToString(content)}}}, nil
	}
	if err := durable.Decode(content, &f); err != nil {
		// The decoder's own words may hold some of the text.
		if !errors.Is(err, durable.ErrTorn) {
			err = errors.New("it is not a file of keys")
		}
		return keyFile{}, fmt.Errorf("the keys of Secrets in %s cannot be read: %w; restore the file from a backup", path, err)
	}
	if len(f.Keys) > 0 && f.find(f.Primary) == nil {
		return keyFile{}, fmt.Errorf("the keys of Secrets in %s: the primary key %q is not among them; restore the file from a backup", path, f.Primary)
	}
	return f, nil
}

func (f keyFile) write(path string) error {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = durable.WriteJSON(path, f, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the keys of Secrets: %w", err)
	}
	return nil
}

// keep puts the key's secret into it, wrapped by a command if there is one. What the command made is unwrapped at once:
// a key that cannot be had again must seal nothing.
func (k *key) keep(ctx context.Context, secret []byte, by string) error {
	text := base64.StdEncoding.EncodeToString(secret)
	if by == "" {
		k.Key = text
		return nil
	}
	c := command{path: by}
	wrapped, err := c.run(ctx, "wrap", text)
	if err != nil {
		return err
	}
	again, err := c.run(ctx, "unwrap", wrapped)
	if err != nil {
		return err
	}
	if again != text {
		return fmt.Errorf("KMS command %s: unwrap does not give what wrap was given; nothing was sealed with it", by)
	}
	k.Wrapped, k.Command = wrapped, by
	return nil
}

// secret is the key itself.
func (k key) secret(ctx context.Context) ([]byte, error) {
	text := k.Key
	if k.Command != "" {
		var err error
		if text, err = (command{path: k.Command}).run(ctx, "unwrap", k.Wrapped); err != nil {
			return nil, err
		}
	}
	secret, err := base64.StdEncoding.DecodeString(text)
	switch {
	case err == nil && len(secret) == keyBytes:
		return secret, nil
	case k.Command != "":
		return nil, fmt.Errorf("KMS command %s: unwrap printed no key of %d bytes in base64", k.Command, keyBytes)
	}
	return nil, fmt.Errorf("it is no key of %d bytes in base64; restore the file from a backup", keyBytes)
}
