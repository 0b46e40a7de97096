package audit

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"heddle.io/heddle/control/server/client"
)

const (
	// changesBurst and changesPerSecond bound, in bytes, what the changes of one caller take of the log: about ten a second, so
	// that who does nothing else needs three days to fill its gibibyte. A record that is larger than the rest of the burst is
	// taken, and what comes next waits the longer.
	changesBurst     = 1 << 20
	changesPerSecond = 4 << 10
	// maxCallers whose room is counted each for himself; beyond, newcomers share one.
	maxCallers = 4096
)

// budgets are the room that callers have left in the log. The zero value is ready.
type budgets struct {
	mu sync.Mutex
	of map[string]*budget
}

// budget is a token bucket that may be overdrawn by one record.
type budget struct {
	left float64
	at   time.Time
}

func (b *budget) refill(now time.Time) {
	if passed := now.Sub(b.at); passed > 0 {
		b.left = min(changesBurst, b.left+passed.Seconds()*changesPerSecond)
	}
	b.at = now
}

// take takes room for a record, or gives the [*client.Problem] with which it is refused.
func (b *budgets) take(caller string, size int, now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.of[caller]
	if own == nil && len(b.of) >= maxCallers {
		for name, other := range b.of {
			if other.refill(now); other.left == changesBurst {
				delete(b.of, name)
			}
		}
		if len(b.of) >= maxCallers {
			caller = ""
			own = b.of[caller]
		}
	}
	if own == nil {
		if b.of == nil {
			b.of = map[string]*budget{}
		}
		own = &budget{left: changesBurst, at: now}
		b.of[caller] = own
	}
	own.refill(now)
	if own.left <= 0 {
		wait := time.Duration((1-own.left)/changesPerSecond*float64(time.Second)).Round(time.Second) + time.Second
		return &client.Problem{Status: http.StatusTooManyRequests, What: "nothing was changed: too many changes by one caller", Where: caller,
			Why: fmt.Sprintf("each is recorded in the audit log, of which one caller may fill %d KiB a second", changesPerSecond>>10), Remedy: fmt.Sprintf("try again in %s, with several objects in one command", wait)}
	}
	own.left -= float64(size)
	return nil
}
