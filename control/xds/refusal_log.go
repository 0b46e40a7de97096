package xds

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"heddle.io/heddle/control/peer"
)

// refusalPause is how long refusals for a reason that the log has are counted before it says how many there were.
const refusalPause = 10 * time.Second

// maxReasons bounds the reasons that are told apart at a time; refusals for further ones are counted together.
const maxReasons = 32

// otherReasons stands for those that are not told apart.
const otherReasons = "other reasons"

// refusalLog has a line for the first refusal of a type for a reason, at once, and one for as many as follow within a pause: what one
// proxy refuses, most refuse, and a thousand lines for one change would be the log's end. What each of them refused is in its status,
// and at debug level in a line of its own.
type refusalLog struct {
	log *slog.Logger
	// later calls a function after a time, without locks held.
	later func(time.Duration, func())

	mu sync.Mutex
	// more are the refusals since the last line, by what is told apart.
	more map[refusedFor]int
}

// refusedFor is what refusals are told apart by.
type refusedFor struct {
	typ    Type
	reason string
}

func newRefusalLog(log *slog.Logger, later func(time.Duration, func())) *refusalLog {
	return &refusalLog{log: log, later: later, more: map[refusedFor]int{}}
}

// note takes a refusal, for a reason in the proxy's words.
func (l *refusalLog) note(proxy string, t Type, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := refusedFor{t, peer.Words(reason, maxWords, false)}
	more, known := l.more[key]
	if !known && len(l.more) >= maxReasons {
		key.reason = otherReasons
		more, known = l.more[key]
	}
	if known {
		l.more[key] = more + 1
		return
	}
	if len(l.more) == 0 {
		l.later(refusalPause, l.flush)
	}
	l.more[key] = 0
	l.log.Warn("proxy refused configuration", "proxy", peer.Words(proxy, maxWords, false), "type", t.String(), "reason", key.reason)
}

// flush says how often there were refusals for reasons that the log has already, and forgets those that there were none for.
func (l *refusalLog) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.more, func(_ refusedFor, more int) bool { return more == 0 })
	for _, key := range slices.SortedFunc(maps.Keys(l.more), func(a, b refusedFor) int {
		return cmp.Or(cmp.Compare(a.typ, b.typ), cmp.Compare(a.reason, b.reason))
	}) {
		l.log.Warn("more refusals of configuration", "refusals", l.more[key], "type", key.typ.String(), "reason", key.reason)
		l.more[key] = 0
	}
	if len(l.more) > 0 {
		l.later(refusalPause, l.flush)
	}
}
