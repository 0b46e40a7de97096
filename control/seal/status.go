package seal

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"
)

// Status says how Secrets are sealed.
type Status struct {
	// File holds the keys; Command wraps new ones, empty for none.
	File    string `json:"file"`
	Command string `json:"command,omitempty"`
	// Keys in the order they were made, the last is new records'.
	Keys []KeyStatus `json:"keys"`
	// Secrets that are stored; Unsealed of them lie there as they are.
	Secrets  int `json:"secrets"`
	Unsealed int `json:"unsealed"`
	// Unreadable are those that cannot be decrypted.
	Unreadable []Unreadable `json:"unreadable,omitempty"`
	// Problem is what is wrong with the file, empty for nothing.
	Problem string `json:"problem,omitempty"`
	// Rotating says that a rotation began and did not come to its end.
	Rotating bool `json:"rotating,omitempty"`
}

// KeyStatus is a key without what makes it secret.
type KeyStatus struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created,omitzero"`
	Primary bool      `json:"primary,omitempty"`
	// Command that wraps the key; empty when it is in the file as it is.
	Command string `json:"command,omitempty"`
	// Secrets that are sealed with it.
	Secrets int `json:"secrets"`
	// Stores are those outside of the cluster's data that it is kept for.
	Stores []string `json:"stores,omitempty"`
	// Kept is why the key is the one that is kept in memory: the next start of the machine has it no more.
	Kept string `json:"kept,omitempty"`
	// Problem is why it cannot be used.
	Problem string `json:"problem,omitempty"`
}

// Unreadable is a Secret that cannot be decrypted.
type Unreadable struct {
	Secret string `json:"secret"`
	Why    string `json:"why"`
}

// Status is what the ring knows: File, Command, Keys, Problem and Rotating.
func (r *Ring) Status() Status {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := Status{File: r.options.File, Command: r.options.Command, Keys: []KeyStatus{}, Rotating: r.several()}
	if _, err := os.Stat(s.File); errors.Is(err, fs.ErrNotExist) && len(r.keys.Keys) > 0 {
		s.Problem = "the file is missing, and a controller that starts has none of the keys: restore it, or run `heddle secrets rotate`, which writes it again"
	}
	for _, k := range r.keys.Keys {
		key := KeyStatus{ID: k.ID, Created: k.Created, Primary: k.ID == r.keys.Primary, Command: k.Command, Stores: slices.Clone(k.Stores)}
		if why := r.open[k.ID].kept; why != nil {
			key.Kept = why.Error()
		}
		if why := r.shut[k.ID]; why != nil {
			key.Problem = why.Error()
		}
		s.Keys = append(s.Keys, key)
	}
	return s
}
