package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

const (
	// retryLeast and retryMost are between attempts to watch a store that does not answer; the pause doubles.
	retryLeast = 50 * time.Millisecond
	retryMost  = 5 * time.Second
	// finishPause is between attempts to finish interrupted batches, and sayAgain between two log lines that say the same of
	// them.
	finishPause = time.Second
	sayAgain    = time.Minute
	// unseenLimit is how long the watch may take to bring an own write before its kind is listed anew. It takes
	// milliseconds; longer when somebody else's write hid it.
	unseenLimit = 30 * time.Second
	// gather is how many events are taken at once, so that a burst does not make those who hear of it work for each.
	gather = 512
)

// Reread has a kind read anew, where what the store holds is the same and what can be read of it is not: the keys of
// Secrets are back. Who follows the kind does it, between two watches, and again until it succeeds.
func (c *Cache) Reread(kind *objects.Kind) {
	select {
	case c.again[kind] <- struct{}{}:
	default:
	}
}

// list reads a kind anew.
func (c *Cache) list(ctx context.Context, kind *objects.Kind) error {
	c.mu.Lock()
	before := c.sequence
	c.mu.Unlock()
	all, position, err := c.List(ctx, kind, "")
	if err != nil {
		return fmt.Errorf("read the store: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// What was written before the list began is in it, whatever the watch has brought.
	maps.DeleteFunc(c.unseen, func(key objects.Key, u *unseen) bool {
		if key.Group != kind.Group || key.Kind != kind.Kind {
			return false
		}
		u.awaited = u.awaited && u.sequence > before
		return u.writing == 0 && !u.awaited
	})
	var events []store.Event
	there := make(map[objects.Key]bool, len(all))
	for _, o := range all {
		there[o.Key()] = true
		if e := (store.Event{Key: o.Key(), Object: o}); c.bring(e) {
			events = append(events, e)
		}
	}
	var missing []objects.Key
	for key := range c.objects {
		if key.Group == kind.Group && key.Kind == kind.Kind && !there[key] {
			missing = append(missing, key)
		}
	}
	for key := range c.unseen {
		// What the watch brought of it may be kept, and not shown yet.
		if key.Group == kind.Group && key.Kind == kind.Kind && !there[key] && c.objects[key] == nil {
			missing = append(missing, key)
		}
	}
	for _, key := range missing {
		if e := (store.Event{Key: key}); c.bring(e) {
			events = append(events, e)
		}
	}
	c.positions[kind] = position
	c.publish(events)
	return nil
}

// Run follows the store until ctx ends. While the store does not answer, what was last known stays.
func (c *Cache) Run(ctx context.Context) {
	var parts sync.WaitGroup
	for _, kind := range objects.Kinds {
		parts.Go(func() { c.follow(ctx, kind) })
	}
	parts.Go(func() { c.finishing(ctx) })
	parts.Wait()
}

// finishing finishes batches that were interrupted while the controller ran.
func (c *Cache) finishing(ctx context.Context) {
	look := time.NewTicker(finishPause)
	defer look.Stop()
	var say saying
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		if c.journal.Unfinished() == 0 {
			continue
		}
		if err := c.Finish(ctx); err == nil {
			c.log.Info("interrupted batches are finished")
			say = saying{}
		} else if say.news(err.Error(), c.now()) {
			c.log.Warn("an interrupted batch is not finished yet", "error", err)
		}
	}
}

// saying is what was logged last, and when.
type saying struct {
	text string
	at   time.Time
}

// news says whether a text is to be logged: it is another one, or a minute has gone.
func (s *saying) news(text string, now time.Time) bool {
	if text == s.text && now.Sub(s.at) < sayAgain {
		return false
	}
	s.text, s.at = text, now
	return true
}

// follow keeps the objects of a kind at what the store holds.
func (c *Cache) follow(ctx context.Context, kind *objects.Kind) {
	pause, expired := retryLeast, false
	for ctx.Err() == nil {
		heard, err := false, error(nil)
		if !expired {
			heard, err = c.watch(ctx, kind)
			expired = errors.Is(err, store.ErrExpired)
		}
		if ctx.Err() != nil {
			return
		}
		if expired {
			err = c.list(ctx, kind)
			expired = err != nil
		}
		if heard || err == nil {
			pause = retryLeast
		}
		if err == nil {
			continue
		}
		c.log.Warn("the store is not followed; trying again", "kind", kind.Plural, "error", err, "pause", pause)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause = min(2*pause, retryMost)
	}
}

// watch follows a kind until the watch breaks, and says whether it brought anything.
func (c *Cache) watch(ctx context.Context, kind *objects.Kind) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	position := c.positions[kind]
	c.mu.Unlock()
	events, ended := c.Watch(ctx, kind, position)
	look := time.NewTicker(unseenLimit / 3)
	defer look.Stop()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return heard, ended()
			}
			heard = true
			c.takeAll(kind, e, events)
		case <-look.C:
			if c.overdue(kind) {
				return heard, store.ErrExpired
			}
		case <-c.again[kind]:
			return heard, store.ErrExpired
		}
	}
}

// takeAll takes an event and those that wait behind it.
func (c *Cache) takeAll(kind *objects.Kind, e store.Event, more <-chan store.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var news []store.Event
	for n := 0; ; n++ {
		if c.bring(e) {
			news = append(news, e)
		}
		c.positions[kind] = e.Position
		if n >= gather {
			break
		}
		var ok bool
		select {
		case e, ok = <-more:
		default:
		}
		if !ok {
			break
		}
	}
	if len(news) > 0 {
		c.changed(news)
	}
}

// overdue says that an own write of a kind was not brought in time.
func (c *Cache) overdue(kind *objects.Kind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, u := range c.unseen {
		if key.Group == kind.Group && key.Kind == kind.Kind && u.awaited && c.now().Sub(u.since) > unseenLimit {
			return true
		}
	}
	return false
}
