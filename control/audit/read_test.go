package audit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/server/client"
)

// What is read from the newest on is the end of what is read from the oldest on, with lines of all lengths, in both series.
func TestTheNewestAreTheEndOfAll(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	l := open(t, Options{Dir: t.TempDir(), Size: 300_000, Keep: 100, Now: func() time.Time { now = now.Add(time.Second); return now }})
	lengths := []int{0, 1, 200, readAtOnce - 200, readAtOnce, readAtOnce + 1, 5 * readAtOnce, 10}
	for i := range 60 {
		r := Record{Who: fmt.Sprintf("user u%d", i%7), Action: Sign, Detail: strings.Repeat("x", lengths[i%len(lengths)])}
		if i%3 > 0 {
			if err := l.Signed(r); err != nil {
				t.Fatal(err)
			}
			continue
		}
		r.Action = Apply
		ended, err := l.Begin(r)
		if err != nil {
			t.Fatal(err)
		}
		ended("", nil)
	}
	key := func(r Record) string { return fmt.Sprint(r.ID, r.Result, r.Who, len(r.Detail)) }
	keys := func(f client.AuditFilter) (out []string) {
		var last time.Time
		for _, r := range records(t, l, f) {
			if !r.Time.After(last) {
				t.Errorf("%+v: %s comes after %s", f, r.Time, last)
			}
			last = r.Time
			out = append(out, key(r))
		}
		return out
	}
	for _, f := range []client.AuditFilter{{}, {Who: "u3"}, {What: "apply"}, {What: "sign"}, {Since: now.Add(-30 * time.Second)}, {Who: "nobody"}} {
		all := keys(f)
		if f == (client.AuditFilter{}) && len(all) != 80 {
			t.Fatalf("%d records", len(all))
		}
		for _, limit := range []int{1, 2, 10, 50, MaxLimit} {
			f.Limit = limit
			if got, want := keys(f), all[max(0, len(all)-limit):]; !slices.Equal(got, want) {
				t.Errorf("%+v: %v, want %v", f, got, want)
			}
		}
	}
}

// A file that need not be read is not opened: neither one older than what is asked for, nor one before the newest records.
func TestOnlyWhatIsNeededIsRead(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	l := open(t, Options{Dir: dir, Size: 1 << 20, Now: func() time.Time { return now }})
	// Whoever reads a directory as a file gets an error.
	old := now.Add(-time.Hour)
	for _, series := range []string{"audit-", "signings-"} {
		if err := os.Mkdir(filepath.Join(dir, series+old.Format(rotated)+".log"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if err := l.Signed(Record{Action: Sign}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Begin(Record{Action: Apply}); err != nil {
			t.Fatal(err)
		}
	}
	read := func(f client.AuditFilter) error { return l.Read(t.Context(), f, func([]byte) error { return nil }) }
	if err := read(client.AuditFilter{}); err == nil {
		t.Fatal("all were asked for, and the oldest files were not read")
	}
	for _, f := range []client.AuditFilter{{Limit: 2}, {Since: old.Add(1)}, {Since: now, Limit: 100}} {
		if err := read(f); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
	if err := read(client.AuditFilter{Since: old}); err == nil {
		t.Error("a file that ended at that time was not read")
	}
}

// Files that were written before signings had their own are read as before, in the order of their times.
func TestFilesOfBothKindsAreReadTogether(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	var text []byte
	for _, r := range []Record{{Action: Sign, Detail: "a", Result: Done, Time: now}, {Action: Apply, Detail: "b", Result: Begun, Time: now.Add(1)}} {
		text = append(text, encode(r)...)
	}
	if err := os.WriteFile(filepath.Join(dir, "audit-"+now.Add(2).Format(rotated)+".log"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Minute)
	l := open(t, Options{Dir: dir, Size: 1 << 20, Now: func() time.Time { now = now.Add(time.Second); return now }})
	for _, detail := range []string{"c", "d"} {
		if err := l.Signed(Record{Action: Sign, Detail: detail}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Begin(Record{Action: Apply, Detail: strings.ToUpper(detail)}); err != nil {
			t.Fatal(err)
		}
	}
	for limit, want := range map[int]string{0: "abcCdD", 5: "bcCdD", 2: "dD"} {
		got := ""
		for _, r := range records(t, l, client.AuditFilter{Limit: limit}) {
			got += r.Detail
		}
		if got != want {
			t.Errorf("%d: %q, want %q", limit, got, want)
		}
	}
}

// Who went away is not read for any more.
func TestReadingEndsWithItsRequest(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir(), Size: 1 << 20})
	for range 10 {
		if err := l.Signed(Record{Who: "user root", Action: Sign}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	if err := l.Read(ctx, client.AuditFilter{}, func([]byte) error { n++; cancel(); return nil }); !errors.Is(err, context.Canceled) || n > 2 {
		t.Errorf("%d records, %v", n, err)
	}
	// Also when nothing is found, and from the end.
	for _, f := range []client.AuditFilter{{Who: "nobody"}, {Who: "nobody", Limit: 1}} {
		if err := l.Read(ctx, f, func([]byte) error { return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// Readers decode, so their number has a bound; so have the places that are remembered.
func TestReadersAreBounded(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir(), Size: 1 << 20})
	if err := l.Signed(Record{Action: Sign}); err != nil {
		t.Fatal(err)
	}
	var nested func(deep int) error
	nested = func(deep int) error {
		return l.Read(t.Context(), client.AuditFilter{}, func([]byte) error {
			if deep == 1 {
				return nil
			}
			return nested(deep - 1)
		})
	}
	if err := nested(maxReaders); err != nil {
		t.Error(err)
	}
	var problem *client.Problem
	if err := nested(maxReaders + 1); !errors.As(err, &problem) || problem.Status != http.StatusTooManyRequests {
		t.Errorf("%+v", err)
	}
	if err := nested(maxReaders); err != nil {
		t.Errorf("places are not given back: %v", err)
	}
	if err := l.Read(t.Context(), client.AuditFilter{Limit: MaxLimit + 1}, nil); !errors.As(err, &problem) || problem.Status != http.StatusBadRequest {
		t.Errorf("%+v", err)
	}
}

// BenchmarkNewest reads the newest ten of a million records.
func BenchmarkNewest(b *testing.B) {
	dir := b.TempDir()
	started := time.Unix(1_900_000_000, 0).UTC()
	const files, lines = 20, 50_000
	for i := range files {
		var text []byte
		for j := range lines {
			text = append(text, encode(Record{ID: "ABCDEFGHIJKLMNOPQRSTUVWXYZ", Time: started.Add(time.Duration(i*lines+j) * time.Second), Who: "user root", From: "unix pid 4711", Action: Sign,
				Objects: []Object{{Name: fmt.Sprintf("spiffe://cluster.local/ns/shop/sa/account-%d", j)}}, Detail: "serial 4711, issuer cluster1, until 2030-01-01T00:00:00Z", Result: Done})...)
		}
		name := "audit-" + started.Add(time.Duration((i+1)*lines)*time.Second).Format(rotated) + ".log"
		if i == files-1 {
			name = "audit.log"
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	l, err := Open(Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	for name, f := range map[string]client.AuditFilter{"limit 10": {Limit: 10}, "all, of nobody": {Who: "nobody"}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				n := 0
				if err := l.Read(b.Context(), f, func([]byte) error { n++; return nil }); err != nil || n != f.Limit {
					b.Fatal(n, err)
				}
			}
		})
	}
}
