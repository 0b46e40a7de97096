package audit

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/server/client"
)

// Who changes something over and over is told to wait, and pushes out nothing of what others did.
func TestChangesOfOneCallerAreBounded(t *testing.T) {
	now := time.Unix(1_900_000_000, 0)
	l := open(t, Options{Dir: t.TempDir(), Size: 16 << 20, Now: func() time.Time { return now }})
	large := Record{Who: "user eve", Caller: "user eve", Action: Apply, Detail: strings.Repeat("x", 100<<10)}
	made := 0
	var err error
	for err == nil && made < 1000 {
		if _, err = l.Begin(large); err == nil {
			made++
		}
	}
	var problem *client.Problem
	if !errors.As(err, &problem) || problem.Status != http.StatusTooManyRequests || problem.Where != "user eve" || problem.Remedy == "" || l.Problem() != "" {
		t.Fatalf("%+v", err)
	}
	if most := changesBurst/(200<<10) + 1; made > most || made < most-1 {
		t.Errorf("%d were made, %d fit", made, most)
	}
	if l.Excess() != 1 {
		t.Errorf("%d are counted", l.Excess())
	}
	// Others are not kept waiting, nor root, nor signings.
	for _, caller := range []string{"user bob", "", "tokens of shop"} {
		if _, err := l.Begin(Record{Caller: caller, Action: Apply}); err != nil {
			t.Errorf("%q: %v", caller, err)
		}
	}
	if err := l.Signed(Record{Action: Sign}); err != nil {
		t.Error(err)
	}
	// What was overdrawn is waited for, then it goes on at the rate.
	now = now.Add(time.Duration(float64(200<<10)/changesPerSecond) * time.Second)
	if _, err := l.Begin(large); err != nil {
		t.Error(err)
	}
	if _, err := l.Begin(large); err == nil {
		t.Error("the rate is not kept")
	}
}

// The table of callers has a bound: idle ones go, and beyond it newcomers share.
func TestCallersWhoseRoomIsCountedAreBounded(t *testing.T) {
	var b budgets
	now := time.Unix(1_900_000_000, 0)
	for i := range maxCallers {
		if err := b.take(fmt.Sprint(i), 2*changesBurst, now); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.take("one more", 2*changesBurst, now); err != nil {
		t.Error(err)
	}
	if err := b.take("another", 1, now); err == nil {
		t.Error("newcomers do not share")
	}
	if len(b.of) > maxCallers+1 {
		t.Errorf("%d callers", len(b.of))
	}
	if err := b.take("another", 1, now.Add(time.Hour)); err != nil || len(b.of) > 2 {
		t.Errorf("%v, %d callers", err, len(b.of))
	}
}
