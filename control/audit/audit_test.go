package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/server/client"
)

func open(t *testing.T, o Options) *Log {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func records(t *testing.T, l *Log, f client.AuditFilter) []Record {
	t.Helper()
	var out []Record
	err := l.Read(t.Context(), f, func(line []byte) error {
		var r Record
		err := json.Unmarshal(line, &r)
		out = append(out, r)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestBeginningAndEnd(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	l := open(t, Options{Dir: t.TempDir(), Size: 1 << 20, Now: func() time.Time { return now }})
	ended, err := l.Begin(Record{Who: "user bob", From: "unix pid 7", Action: "apply", Objects: []Object{{Name: "Service/shop/cart", Action: "created"}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := records(t, l, client.AuditFilter{}); len(got) != 1 || got[0].Result != Begun || !got[0].Time.Equal(now) || got[0].Objects[0].Action != "created" {
		t.Errorf("%+v", got)
	}
	now = now.Add(time.Second)
	ended("revision 7", nil)
	failed, err := l.Begin(Record{Who: "user bob", Action: "delete"})
	if err != nil {
		t.Fatal(err)
	}
	failed("", errors.New("the store is away"))
	if err := l.Signed(Record{Who: "user root", Action: "sign", Detail: "serial 41", Objects: []Object{{Name: "spiffe://cluster.local/ns/shop/sa/cart"}}}); err != nil {
		t.Fatal(err)
	}
	got := records(t, l, client.AuditFilter{})
	if len(got) != 5 || got[0].ID != got[1].ID || got[1].ID == got[2].ID || got[1].Result != Done || got[1].Detail != "revision 7" || !got[1].Time.Equal(now) ||
		got[3].Result != Failed || got[3].Why != "the store is away" || got[4].Result != Done {
		t.Errorf("%+v", got)
	}
	for f, want := range map[client.AuditFilter]int{
		{Who: "BOB"}: 4, {Who: "root"}: 1, {What: "delete"}: 2, {What: "sa/cart"}: 1, {What: "serial 41"}: 1, {Since: now}: 4, {Since: now.Add(1)}: 0, {Limit: 2}: 2, {Refused: true}: 0,
	} {
		if got := records(t, l, f); len(got) != want {
			t.Errorf("%+v: %d records, want %d", f, len(got), want)
		}
	}
	if newest := records(t, l, client.AuditFilter{Limit: 1}); newest[0].Action != "sign" {
		t.Errorf("%+v", newest)
	}
	if info, err := os.Stat(filepath.Join(l.options.Dir, "audit.log")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

func TestFilesAreBoundedInSizeAndNumber(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	l := open(t, Options{Dir: t.TempDir(), Size: 1000, Keep: 3, Now: func() time.Time { now = now.Add(time.Second); return now }})
	for i := range 100 {
		if err := l.Signed(Record{Action: "sign", Detail: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := filepath.Glob(filepath.Join(l.options.Dir, "signings*"))
	if err != nil || len(entries) != 4 {
		t.Fatalf("%v %v", entries, err)
	}
	for _, e := range entries {
		if info, err := os.Stat(e); err != nil || info.Size() > 1000 || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", e, info, err)
		}
	}
	// The newest are there, all, and in order.
	got := records(t, l, client.AuditFilter{})
	if len(got) < 10 || got[len(got)-1].Detail != "99" {
		t.Fatalf("%d, %+v", len(got), got[len(got)-1])
	}
	for i, r := range got {
		if r.Detail != fmt.Sprint(100-len(got)+i) {
			t.Errorf("%d is %s", i, r.Detail)
		}
	}
}

// A line that was cut off by a power failure spoils none of those around it.
func TestATornLineIsPassedOver(t *testing.T) {
	dir := t.TempDir()
	first := open(t, Options{Dir: dir, Size: 1 << 20})
	if err := first.Signed(Record{Action: "one"}); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "audit.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"time":"2030-01-01T12:00:00Z","action":"two`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	l := open(t, Options{Dir: dir, Size: 1 << 20})
	if err := l.Signed(Record{Action: "three"}); err != nil {
		t.Fatal(err)
	}
	got := records(t, l, client.AuditFilter{})
	if len(got) != 2 || got[0].Action != "one" || got[1].Action != "three" {
		t.Errorf("%+v", got)
	}
}

// Refusals are bounded in rate, counted beyond, and push out nothing that was done.
func TestRefusalsDoNotFillTheLog(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	l := open(t, Options{Dir: t.TempDir(), Size: 1 << 20, Now: func() time.Time { return now }})
	if err := l.Signed(Record{Action: "sign"}); err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		l.Refused(Record{Who: "unknown", Action: Action(strings.Repeat("x", 300))})
	}
	now = now.Add(time.Second)
	l.Refused(Record{Who: "bob"})
	got := records(t, l, client.AuditFilter{Refused: true})
	if len(got) != refusalBurst+1 || got[len(got)-1].Unrecorded != 10_000-refusalBurst {
		t.Errorf("%d records, the last %+v", len(got), got[len(got)-1])
	}
	if done := records(t, l, client.AuditFilter{}); len(done) != 1 {
		t.Errorf("%+v", done)
	}
}

func TestManyAtOnceAreAllThere(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir(), Size: 20_000, Keep: 1000})
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 50 {
				if err := l.Signed(Record{Action: "sign"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	ids := map[string]bool{}
	for _, r := range records(t, l, client.AuditFilter{}) {
		ids[r.ID] = true
	}
	if len(ids) != 800 {
		t.Errorf("%d records", len(ids))
	}
}

// On a full disk the room that was taken before is used up, then what cannot be recorded is refused, and with space it goes
// on by itself. No line is cut off.
func TestAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no file system can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	l := open(t, Options{Dir: filepath.Join(dir, "audit"), Size: 256 << 10})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk did not run full: %v", err)
	}
	recorded := 0
	var err error
	for err == nil && recorded < 100_000 {
		if err = l.Signed(Record{Action: "sign", Detail: strings.Repeat("x", 200)}); err == nil {
			recorded++
		}
	}
	var problem *client.Problem
	if !errors.As(err, &problem) || problem.Status != http.StatusServiceUnavailable || !strings.Contains(problem.Remedy, "make room") || l.Problem() == "" {
		t.Errorf("%v %q", err, l.Problem())
	}
	if recorded < 600 {
		t.Errorf("only %d were recorded in the room that was taken", recorded)
	}
	if got := records(t, l, client.AuditFilter{}); len(got) != recorded {
		t.Errorf("%d records of %d", len(got), recorded)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := l.Signed(Record{Action: "sign"}); err != nil || l.Problem() != "" {
		t.Errorf("%v %q", err, l.Problem())
	}
	if got := records(t, l, client.AuditFilter{}); len(got) != recorded+1 {
		t.Errorf("%d records of %d", len(got), recorded+1)
	}
}
