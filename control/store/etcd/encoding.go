package etcd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
)

// encode writes an object for the store; a Secret is sealed, and bound to its place.
func (s *Store) encode(o *objects.Object) ([]byte, error) {
	if o.Unreadable != "" {
		return nil, fmt.Errorf("%s cannot be written as it was read: %s", o.Key(), o.Unreadable)
	}
	bare := *o.WithoutLines()
	bare.Status, bare.Version, bare.StatusVersion = objects.Status{}, "", ""
	value, err := json.Marshal(&bare)
	if err != nil {
		return nil, err
	}
	if o.Kind == objects.Secret {
		return s.keys.Seal(value, path(o.Key()))
	}
	return value, nil
}

// asVersion stands before a record that was sealed anew, "as:<version>:<record>": what it holds is what it was, and so is its
// version, by which whoever has read the Secret before writes it after. A JSON document never begins like this.
var asVersion = []byte("as:")

// stored is the record that etcd holds, and the version of the object in it.
func stored(kv *mvccpb.KeyValue) (record []byte, v objects.Version) {
	if rest, again := bytes.CutPrefix(kv.Value, asVersion); again {
		if as, record, ok := bytes.Cut(rest, []byte(":")); ok {
			// Whoever else may write to the store does not choose what versions look like.
			if n, err := strconv.ParseInt(string(as), 10, 64); err == nil && n > 0 && n < kv.ModRevision {
				return record, version(n)
			}
			return record, version(kv.ModRevision)
		}
	}
	return kv.Value, version(kv.ModRevision)
}

// withVersion is a record to be stored for an object that keeps its version.
func withVersion(record []byte, v objects.Version) []byte {
	return slices.Concat(asVersion, []byte(v), []byte(":"), record)
}

// decode reads an object. A Secret that cannot be decrypted is one without content that says so: it must not keep the
// others from being read.
func (s *Store) decode(kv *mvccpb.KeyValue) (*objects.Object, error) {
	value, version := stored(kv)
	if _, sealed := seal.KeyOf(value); sealed {
		key := parseKey(string(kv.Key)).key
		place := path(key)
		var err error
		if value, err = s.keys.Open(value, place); errors.Is(err, seal.ErrClosed) {
			o := objects.Unknown(objects.Secret, key, err.Error())
			o.Version, o.StatusVersion = version, noStatus
			return o, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kv.Key, err)
		}
	}
	o := new(objects.Object)
	if err := json.Unmarshal(value, o); err != nil {
		return nil, fmt.Errorf("%s in the store: %w", kv.Key, err)
	}
	o.Version, o.StatusVersion = version, noStatus
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
