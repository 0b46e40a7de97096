package audit

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"heddle.io/heddle/control/server/client"
)

// The mesh signs all the time; what people did stays.
func TestSigningsPushOutNoChange(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir(), Size: 1000, Keep: 3})
	ended, err := l.Begin(Record{Who: "user eve", Action: Apply})
	if err != nil {
		t.Fatal(err)
	}
	ended("", nil)
	for range 100 {
		if err := l.Signed(Record{Who: "user root", Action: Sign}); err != nil {
			t.Fatal(err)
		}
	}
	if got := records(t, l, client.AuditFilter{Who: "eve"}); len(got) != 2 {
		t.Errorf("%+v", got)
	}
}

// How far back the log goes, and that something went, can be seen.
func TestWhatIsLeftOfASeriesIsTold(t *testing.T) {
	began := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	now := began
	l := open(t, Options{Dir: t.TempDir(), Size: 1000, Keep: 3, Now: func() time.Time { return now }})
	for range 5 {
		if err := l.Signed(Record{Action: Sign}); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
	}
	s := l.Series()
	if len(s) != 3 || s[0].Name != "changes" || s[0].Oldest != nil || s[1].Name != "signings" || !s[1].Oldest.Equal(began) || s[1].FilesRemoved != 0 {
		t.Errorf("%+v", s)
	}
	for range 100 {
		if err := l.Signed(Record{Action: Sign}); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
	}
	first := records(t, l, client.AuditFilter{})[0].Time
	if s = l.Series(); s[1].FilesRemoved == 0 || !s[1].Oldest.Equal(first) || !first.After(began) || s[0].FilesRemoved != 0 {
		t.Errorf("%+v, the first is of %s", s, first)
	}
}

// A clock that is put back, or stands, takes no file away and changes no order.
func TestNamesOfFilesGoOnWhenTheClockDoesNot(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	l := open(t, Options{Dir: t.TempDir(), Size: 1, Keep: 100, Now: func() time.Time { return now }})
	for i := range 10 {
		if err := l.Signed(Record{Action: Sign, Detail: string(rune('a' + i))}); err != nil {
			t.Fatal(err)
		}
		if i == 5 {
			now = now.Add(-time.Hour)
		}
	}
	got := ""
	for _, r := range records(t, l, client.AuditFilter{}) {
		got += r.Detail
	}
	if got != "abcdefghij" {
		t.Errorf("%q", got)
	}
}

// After a failed fsync the kernel may have dropped what was written, and a later one succeeds all the same. So who waited
// for the first is refused whatever follows, and what follows is in another file.
func TestAFailedSyncBeginsANewFile(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Options{Dir: dir, Size: 1 << 20})
	if err := l.Signed(Record{Action: Sign, Detail: "before"}); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("input/output error")
	fail := atomic.Bool{}
	l.signed.fsync = func(f *os.File) error {
		if fail.Load() {
			return broken
		}
		return f.Sync()
	}
	// Two lines wait when the disk fails: one syncs, and the other comes when it works again.
	for _, detail := range []string{"first", "second"} {
		if err := l.signed.add(encode(Record{Action: Sign, Detail: detail}), false); err != nil {
			t.Fatal(err)
		}
	}
	in := l.signed.current
	fail.Store(true)
	if err := l.signed.sync(in, 2); !errors.Is(err, broken) {
		t.Errorf("the first: %v", err)
	}
	fail.Store(false)
	if err := l.signed.sync(in, 3); !errors.Is(err, broken) {
		t.Errorf("the second, which was as little on the disk: %v", err)
	}
	if err := l.signed.sync(in, 1); err != nil {
		t.Errorf("what was on the disk before: %v", err)
	}
	if err := l.Signed(Record{Action: Sign, Detail: "after"}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "signings*"))
	if err != nil || len(files) != 2 {
		t.Errorf("%v %v", files, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "signings.log"))
	var got []Record
	if err == nil {
		got = records(t, l, client.AuditFilter{What: "after"})
	}
	if len(got) != 1 || string(text) != string(encode(got[0])) {
		t.Errorf("the new file is %q: %v", text, err)
	}
}

// A disk whose fsync goes on failing does not push out what it kept.
func TestAFailingDiskRemovesNoOlderFile(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir(), Size: 1 << 20, Keep: 3})
	if err := l.Signed(Record{Action: Sign, Detail: "good"}); err != nil {
		t.Fatal(err)
	}
	l.signed.fsync = func(*os.File) error { return errors.New("input/output error") }
	for range 20 {
		if err := l.Signed(Record{Action: Sign}); err == nil {
			t.Fatal("it is not on the disk")
		}
	}
	if l.Problem() == "" {
		t.Error("the status does not tell")
	}
	l.signed.fsync = (*os.File).Sync
	if err := l.Signed(Record{Action: Sign}); err != nil || l.Problem() != "" {
		t.Errorf("%v %q", err, l.Problem())
	}
	if got := records(t, l, client.AuditFilter{What: "good"}); len(got) != 1 {
		t.Errorf("%+v", got)
	}
	if s := l.Series(); s[1].FilesRemoved != 0 {
		t.Errorf("%+v", s)
	}
}
