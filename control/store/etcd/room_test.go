package etcd

import (
	"errors"
	"os"
	"strings"
	"testing"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// A disk that is nearly full takes no writes, for etcd would end the process; reads go on, and so do writes once there
// is space again.
func TestFullDiskRefusesWrites(t *testing.T) {
	s := open(t, t.TempDir())
	before := account(t, "before")
	if _, err := s.Write(t.Context(), put(before)); err != nil {
		t.Fatal(err)
	}
	bytes, broken := uint64(reserveBytes-1), error(nil)
	place := disk{dir: t.TempDir(), free: func(string) (uint64, error) { return bytes, broken }}
	s.room = place.room
	_, err := s.Write(t.Context(), put(account(t, "during")))
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "127 MiB are free in "+place.dir) {
		t.Errorf("write: %v", err)
	}
	if _, err := s.SetStatus(t.Context(), before.Key(), objects.Status{}, ""); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("status: %v", err)
	}
	broken = errors.New("input/output error")
	if _, err := s.Write(t.Context(), put(account(t, "during"))); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("write to a broken disk: %v", err)
	}
	bytes, broken = deletingBytes-1, nil
	if _, err := s.Write(t.Context(), store.Write{Key: before.Key()}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("deletion without space: %v", err)
	}
	bytes = deletingBytes
	if _, err := s.Write(t.Context(), store.Write{Key: account(t, "none").Key()}); err != nil {
		t.Errorf("deletion with little space: %v", err)
	}
	bytes = reserveBytes
	all, _, err := s.List(t.Context(), objects.ServiceAccount, "")
	if err != nil || len(all) != 1 {
		t.Errorf("there are %d objects, %v", len(all), err)
	}
	if _, err := s.Write(t.Context(), put(account(t, "after"))); err != nil {
		t.Errorf("write with space again: %v", err)
	}
}

// The reserve is made while there is plenty of space, and given up only when etcd needs it to start.
func TestReserve(t *testing.T) {
	bytes := uint64(2*reserveBytes - 1)
	place := disk{dir: t.TempDir(), free: func(string) (uint64, error) { return bytes, nil }}
	room := func() error { return place.room(reserveBytes) }
	for _, step := range []struct {
		free   uint64
		act    func() error
		exists bool
	}{
		{2*reserveBytes - 1, room, false},
		{2 * reserveBytes, room, true},
		{2 * reserveBytes, room, true},
		{reserveBytes, place.prepare, true},
		{reserveBytes - 1, place.prepare, false},
		{reserveBytes - 1, place.prepare, false},
	} {
		bytes = step.free
		if err := step.act(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(place.reserve()); err == nil != step.exists {
			t.Errorf("with %d bytes free: the reserve: %v, want it there: %v", step.free, err, step.exists)
		}
	}
}
