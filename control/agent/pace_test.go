package agent

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"heddle.io/heddle/control/server/client"
)

func TestRefusedReportsAreRepeatedSeldom(t *testing.T) {
	var p reportPace
	now := time.Unix(0, 0)
	refused := &client.Problem{Status: http.StatusBadRequest, What: "too many replicas"}
	want := retryPause
	for i := range 12 {
		pause, news := p.next(refused, now)
		if pause != want || news != (i == 0) {
			t.Fatalf("after %d refusals: %s, %t, want %s", i+1, pause, news, want)
		}
		// A change of what runs does not make it sooner.
		if p.due(now.Add(pause-1)) || !p.due(now.Add(pause)) {
			t.Fatalf("not due after %s", pause)
		}
		now, want = now.Add(pause), min(2*want, refusedPause)
	}
	if _, news := p.next(&client.Problem{Status: http.StatusRequestEntityTooLarge, What: "another"}, now); !news {
		t.Error("another reason is not told")
	}
	// Who is not reached, or taken again, hears of changes at once.
	if pause, news := p.next(errors.New("connection refused"), now); pause != retryPause || news || !p.due(now) {
		t.Errorf("not reached: %s, %t", pause, news)
	}
	if pause, news := p.next(nil, now); pause != reportInterval || news || !p.due(now) || p != (reportPace{}) {
		t.Errorf("taken: %s, %t, %+v", pause, news, p)
	}
}
