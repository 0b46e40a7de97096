package table

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

// blunder panics as a mistake in a callback does.
func blunder(depth int) error {
	if depth > 0 {
		return blunder(depth - 1)
	}
	panic("nobody thought of this")
}

// A panic is damage, and the error says where it was, within a bound.
func TestPanicSaysWhere(t *testing.T) {
	for _, depth := range []int{0, 1000} {
		x, err := Open(filepath.Join(t.TempDir(), "t.db"))
		if err != nil {
			t.Fatal(err)
		}
		err = x.View(func(*bbolt.Tx) error { return blunder(depth) })
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "nobody thought of this") || !strings.Contains(err.Error(), "table.blunder") {
			t.Errorf("%d deep: %v", depth, err)
		}
		if len(err.Error()) > maxStack+200 {
			t.Errorf("%d deep: %d bytes", depth, len(err.Error()))
		}
	}
}
