package etcd

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/objects"
)

// sealed begins the stored form of a Secret; a JSON document never begins like this.
var sealed = []byte("sealed:1:")

// encode writes an object for the store; a Secret is encrypted.
func (s *Store) encode(o *objects.Object) ([]byte, error) {
	bare := *o.WithoutLines()
	bare.Status, bare.Version, bare.StatusVersion = objects.Status{}, "", ""
	value, err := json.Marshal(&bare)
	if err != nil {
		return nil, err
	}
	if o.Kind.Group == "" && o.Kind.Kind == "Secret" {
		return s.seal.close(value, path(o.Key()))
	}
	return value, nil
}

func (s *Store) decode(kv *mvccpb.KeyValue) (*objects.Object, error) {
	value := kv.Value
	if box, ok := bytes.CutPrefix(value, sealed); ok {
		var err error
		if value, err = s.seal.open(box, path(parseKey(string(kv.Key)).key)); err != nil {
			return nil, fmt.Errorf("%s: %w", kv.Key, err)
		}
	}
	o := new(objects.Object)
	if err := json.Unmarshal(value, o); err != nil {
		return nil, fmt.Errorf("%s in the store: %w", kv.Key, err)
	}
	o.Version, o.StatusVersion = version(kv.ModRevision), noStatus
	return o, nil
}

func encodeStatus(status objects.Status) ([]byte, error) { return json.Marshal(status) }

func decodeStatus(kv *mvccpb.KeyValue) (objects.Status, error) {
	var status objects.Status
	if err := json.Unmarshal(kv.Value, &status); err != nil {
		return status, fmt.Errorf("%s in the store: %w", kv.Key, err)
	}
	return status, nil
}

// seal encrypts Secrets at rest with AES-256-GCM. An object's place in the store is authenticated with it, so that one
// Secret's value cannot be put in another's place.
type seal struct{ aead cipher.AEAD }

// sealKeyBytes is the length of the key of AES-256.
const sealKeyBytes = 32

// openSeal reads the key file, or makes it at first use.
func openSeal(file string) (*seal, error) {
	key, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		key = make([]byte, sealKeyBytes)
		if _, err := rand.Read(key); err != nil {
			return nil, err
		}
		err = durable.Write(file, key, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("key of the store's secrets: %w", err)
	}
	if len(key) != sealKeyBytes {
		return nil, fmt.Errorf("key of the store's secrets in %s has %d bytes instead of %d: %w; restore the file from a backup", file, len(key), sealKeyBytes, durable.ErrTorn)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("key of the store's secrets in %s: %w; restore the file from a backup", file, err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &seal{aead}, nil
}

func (s *seal) close(value []byte, place string) ([]byte, error) {
	nonce := make([]byte, s.aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return s.aead.Seal(append(bytes.Clone(sealed), nonce...), nonce, value, []byte(place)), nil
}

func (s *seal) open(box []byte, place string) ([]byte, error) {
	if len(box) < s.aead.NonceSize() {
		return nil, errors.New("the encrypted value is cut short")
	}
	nonce, box := box[:s.aead.NonceSize()], box[s.aead.NonceSize():]
	value, err := s.aead.Open(nil, nonce, box, []byte(place))
	if err != nil {
		return nil, fmt.Errorf("the secret does not open with the store's key: restore secrets.key from the backup that the data came from: %w", err)
	}
	return value, nil
}
