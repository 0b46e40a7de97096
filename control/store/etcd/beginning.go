package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"heddle.io/heddle/control/durable"
)

// beginning marks a member that has not been ready yet. etcd takes a log for a member's that has no more than its head, as a
// first start leaves it that a kill or a failing disk ends, and then waits for ever for members that it does not know.
type beginning struct{ mark, data string }

func newBeginning(dir, data string) beginning {
	return beginning{mark: filepath.Join(dir, "first-start"), data: data}
}

// prepare removes what an earlier first start left: nobody was ever told that something is in there. A member without the
// mark has been ready, and keeps its data.
func (b beginning) prepare() error {
	_, err := os.Stat(b.mark)
	switch {
	case err == nil:
		if err := errors.Join(os.RemoveAll(b.data), durable.SyncDir(filepath.Dir(b.data))); err != nil {
			return fmt.Errorf("remove a store that was never ready: %w", err)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look for a first start: %w", err)
	}
	if _, err := os.Stat(b.data); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for a store: %w", err)
	}
	return durable.Write(b.mark, nil, 0o600)
}

// done is called before anything is stored.
func (b beginning) done() error { return durable.Remove(b.mark) }
