package agent

import (
	"errors"
	"time"

	"heddle.io/heddle/control/server/client"
)

// Pauses between reports: reportInterval when nothing changes, retryPause while the controller is not reached, and from
// retryPause doubling to refusedPause while it does not take the report, which costs it as much to refuse as to take.
const (
	reportInterval = time.Second
	refusedPause   = 30 * time.Second
)

// reportPace says when to report.
type reportPace struct {
	// refused is how the last report was, empty when it was taken.
	refused string
	pause   time.Duration
	until   time.Time
}

// due says whether to report now, because something changed.
func (p *reportPace) due(now time.Time) bool { return !now.Before(p.until) }

// next is the pause after a report that ended so, and whether it is refused for another reason than before.
func (p *reportPace) next(err error, now time.Time) (pause time.Duration, news bool) {
	var problem *client.Problem
	switch {
	case err == nil:
		*p = reportPace{}
		return reportInterval, false
	case !errors.As(err, &problem) || problem.Status < 400 || problem.Status > 499:
		p.until = time.Time{}
		return retryPause, false
	}
	news = p.refused != err.Error()
	p.refused = err.Error()
	p.pause = min(max(2*p.pause, retryPause), refusedPause)
	p.until = now.Add(p.pause)
	return p.pause, news
}
