// Package cache is what a controller knows of a store: every object, held in memory, kept up to date by a watch per kind
// and by the controller's own writes.
//
// What the controller wrote is in the cache before the write returns, whatever the watch has brought by then: until the
// watch brings that version too, what it says of the object is older and passed over. What a batch changes appears in the
// cache at once, when the whole batch is made; so nobody acts on a half of one.
package cache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/journal"
)

// Cache of a store. It implements [store.Batch]: whoever writes through it is seen in it.
type Cache struct {
	store.Store
	journal *journal.Journal
	log     *slog.Logger
	now     func() time.Time
	changed func([]store.Event)

	mu      sync.Mutex
	objects map[objects.Key]*objects.Object
	// positions are where the watch of each kind goes on.
	positions map[*objects.Kind]store.Position
	// unseen are the objects whose own writes the watch has not brought yet.
	unseen map[objects.Key]*unseen
	// again holds one value for a kind that is to be read anew.
	again map[*objects.Kind]chan struct{}
	// sequence counts own writes, to tell which are older than a list.
	sequence uint64
}

// unseen is an object that this controller writes, or has written. It is kept while it is written or awaited.
type unseen struct {
	// writing counts the batches that write it and are neither made nor given up. While there are any, the newest state that
	// the watch brought is kept here, and the last versions that it brought. forgot says that there were more of them: the
	// own write may have been one.
	writing int
	newest  *store.Event
	brought []objects.Version
	forgot  bool
	// awaited says that the watch is to bring the version awaits, which is empty for a deletion. What it brings before is
	// older than what is shown.
	awaited  bool
	awaits   objects.Version
	sequence uint64
	since    time.Time
	// number is the journal's of the own write that is shown.
	number uint64
}

// maxBrought is how many versions of an object are kept while it is written. The own write is among the last few, unless its
// batch is interrupted for long and others write the object all the time.
const maxBrought = 64

// bring notes what the watch brought of an object that is written.
func (u *unseen) bring(e store.Event, version objects.Version) {
	if u.newest = &e; slices.Contains(u.brought, version) {
		return
	}
	if len(u.brought) == maxBrought {
		u.brought, u.forgot = u.brought[1:], true
	}
	u.brought = append(u.brought, version)
}

// gone is the version of an object that is not there.
const gone objects.Version = ""

// Options of a cache.
type Options struct {
	Store store.Store
	Log   *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Changed is told of every change that the cache sees, in order; a batch's all together. It must not call the cache.
	Changed func([]store.Event)
}

// Open finishes what was interrupted, and reads everything.
func Open(ctx context.Context, o Options) (*Cache, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Changed == nil {
		o.Changed = func([]store.Event) {}
	}
	c := &Cache{Store: o.Store, log: o.Log, now: o.Now, changed: o.Changed, objects: map[objects.Key]*objects.Object{},
		positions: map[*objects.Kind]store.Position{}, unseen: map[objects.Key]*unseen{}, again: map[*objects.Kind]chan struct{}{}}
	for _, kind := range objects.Kinds {
		c.again[kind] = make(chan struct{}, 1)
	}
	var err error
	if c.journal, err = journal.Open(ctx, o.Store, o.Now, uuid.NewString); err != nil {
		return nil, err
	}
	if n := c.journal.Unfinished(); n > 0 {
		c.log.Info("finishing batches that were interrupted", "batches", n)
		if err := c.journal.Finish(ctx, func(journal.Change) {}); err != nil {
			// Reading goes on without; the objects in it are as they are until it is finished.
			c.log.Error("an interrupted batch is not finished yet", "error", err)
		}
	}
	for _, kind := range objects.Kinds {
		if err := c.list(ctx, kind); err != nil {
			return nil, err
		}
	}
	for _, key := range c.journal.Waiting() {
		c.begin(key)
	}
	return c, nil
}

// Object implements [store.Batch].
func (c *Cache) Object(key objects.Key) *objects.Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.objects[key]
}

// Objects implements [store.Batch]: all objects, in no order. They are shared, and must not be changed.
func (c *Cache) Objects() []*objects.Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.objects))
}

// Reports are the batches that could not be made as they were meant.
func (c *Cache) Reports() []journal.Report { return c.journal.Reports() }

// Unfinished is how many batches were interrupted and are still to be finished.
func (c *Cache) Unfinished() int { return c.journal.Unfinished() }

// Apply implements [store.Batch].
func (c *Cache) Apply(ctx context.Context, writes []store.Write) error {
	c.mu.Lock()
	for _, w := range writes {
		c.begin(w.Key)
	}
	c.mu.Unlock()
	return c.written(writes, func(written journal.Written) error { return c.journal.Apply(ctx, writes, written) })
}

// Write implements [store.Store].
func (c *Cache) Write(ctx context.Context, w store.Write) (objects.Version, error) {
	c.mu.Lock()
	c.begin(w.Key)
	c.mu.Unlock()
	var version objects.Version
	err := c.written([]store.Write{w}, func(written journal.Written) error {
		return c.journal.Apply(ctx, []store.Write{w}, func(change journal.Change) {
			if !change.Earlier {
				version = change.Version
			}
			written(change)
		})
	})
	return version, err
}

// Finish makes what is left of interrupted batches.
func (c *Cache) Finish(ctx context.Context) error {
	return c.written(nil, func(written journal.Written) error { return c.journal.Finish(ctx, written) })
}

// Discard implements [store.Batch].
func (c *Cache) Discard(ctx context.Context, id string) (left []objects.Key, err error) {
	err = c.written(nil, func(written journal.Written) error {
		left, err = c.journal.Discard(ctx, id, written)
		return err
	})
	return left, err
}

// SetStatus implements [store.Store].
func (c *Cache) SetStatus(ctx context.Context, key objects.Key, status objects.Status, ifVersion objects.Version) (objects.Version, error) {
	version, err := c.Store.SetStatus(ctx, key, status, ifVersion)
	if errors.Is(err, store.ErrConflict) {
		c.reread(ctx, key)
	}
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Without this, the next round would be compared with the status before.
	if o := c.objects[key]; o != nil {
		updated := *o
		updated.Status, updated.StatusVersion = status, version
		c.objects[key] = &updated
		c.changed([]store.Event{{Key: key, Object: &updated, StatusOnly: true}})
	}
	return version, nil
}

// reread takes the status of an object that is not what was thought.
func (c *Cache) reread(ctx context.Context, key objects.Key) {
	o, err := c.Get(ctx, key)
	if err != nil {
		return // It is tried again with the status.
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.objects[key]; old != nil && old.Version == o.Version {
		c.objects[key] = o
		c.changed([]store.Event{{Key: key, Object: o, StatusOnly: true}})
	}
}

// written runs what writes, and shows what it made. Each of the writes was begun.
func (c *Cache) written(writes []store.Write, run func(journal.Written) error) error {
	var all []journal.Change
	err := run(func(change journal.Change) { all = append(all, change) })
	c.mu.Lock()
	defer c.mu.Unlock()
	var events []store.Event
	own := map[objects.Key]bool{}
	for _, change := range all {
		own[change.Write.Key] = own[change.Write.Key] || !change.Earlier
		if change.Left != nil {
			events = c.release(change.Write.Key, events)
		} else {
			events = c.made(change, events)
		}
	}
	for _, w := range writes {
		// What is interrupted is shown with the rest of its batch.
		if !own[w.Key] && !errors.Is(err, store.ErrInterrupted) {
			events = c.release(w.Key, events)
		}
	}
	c.publish(events)
	return err
}

func (c *Cache) publish(events []store.Event) {
	if len(events) > 0 {
		slices.SortStableFunc(events, func(a, b store.Event) int { return a.Key.Compare(b.Key) })
		c.changed(events)
	}
}

// begin says that a batch is about to write an object.
func (c *Cache) begin(key objects.Key) {
	u := c.unseen[key]
	if u == nil {
		u = &unseen{}
		c.unseen[key] = u
	}
	if u.writing == 0 {
		u.brought, u.forgot = nil, false
	}
	u.writing++
}

// release says that a batch did not write an object after all.
func (c *Cache) release(key objects.Key, events []store.Event) []store.Event {
	return c.settle(key, c.end(key), events)
}

// end says that one batch does not write an object any more.
func (c *Cache) end(key objects.Key) *unseen {
	u := c.unseen[key]
	if u == nil {
		u = &unseen{}
		c.unseen[key] = u
	}
	u.writing = max(u.writing-1, 0)
	return u
}

// settle shows what the watch brought of an object, when nobody writes it any more and that is newer than what is shown.
func (c *Cache) settle(key objects.Key, u *unseen, events []store.Event) []store.Event {
	if u.writing > 0 {
		return events
	}
	newest := u.newest
	u.newest, u.brought = nil, nil
	if u.awaited {
		return events
	}
	delete(c.unseen, key)
	if newest == nil {
		return events
	}
	old := c.objects[key]
	// What came before it was not shown, and may have changed more.
	newest.StatusOnly = newest.StatusOnly && old != nil && newest.Object != nil && old.Version == newest.Object.Version
	if c.take(*newest) {
		events = append(events, *newest)
	}
	return events
}

// made shows an own write, unless the watch has brought it already or a later one is shown.
func (c *Cache) made(change journal.Change, events []store.Event) []store.Event {
	key, object, version := change.Write.Key, change.Write.Object, change.Version
	u := c.end(key)
	if change.Number < u.number {
		return c.settle(key, u, events)
	}
	u.number = change.Number
	if object == nil {
		version = gone
	}
	brought := slices.Contains(u.brought, version)
	if brought {
		u.awaited = false
		if u.writing == 0 {
			return c.settle(key, u, events)
		}
		// The newest may be of a batch that is not whole yet. This one is.
	}
	old := c.objects[key]
	if object == nil && old == nil || object != nil && old != nil && old.Version == version {
		// It is as it was: nothing was there to delete, or a list brought it. Nothing more will be brought.
		return c.settle(key, u, events)
	}
	event := store.Event{Key: key}
	if object == nil {
		delete(c.objects, key)
	} else {
		o, err := stored(object)
		if err != nil {
			// It was written in this form. The watch brings it.
			c.log.Error("own write not shown", "object", key.String(), "error", err)
			u.awaited = false
			return c.settle(key, u, events)
		}
		o.Version = version
		if old != nil {
			o.Status, o.StatusVersion = old.Status, old.StatusVersion
		}
		c.objects[key], event.Object = o, o
	}
	if !brought {
		if u.forgot {
			// It may have been brought already. A list tells.
			if kind := objects.KindOf(key.Group, key.Kind); kind != nil {
				c.Reread(kind)
			}
		}
		c.sequence++
		u.awaited, u.awaits, u.sequence, u.since = true, version, c.sequence, c.now()
	}
	return c.settle(key, u, append(events, event))
}

// stored is an object as the store would give it back; it shares nothing with what was written.
func stored(o *objects.Object) (*objects.Object, error) {
	text, err := json.Marshal(o.WithoutLines())
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	out := new(objects.Object)
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	out.Status, out.Version, out.StatusVersion = objects.Status{}, "", ""
	return out, nil
}

// take makes an event's object the cached one, and says whether that changed anything.
func (c *Cache) take(e store.Event) bool {
	old := c.objects[e.Key]
	if e.Object == nil {
		delete(c.objects, e.Key)
		return old != nil
	}
	c.objects[e.Key] = e.Object
	return old == nil || old.Version != e.Object.Version || old.StatusVersion != e.Object.StatusVersion || old.Unreadable != e.Object.Unreadable
}

// bring takes what the watch, or a list, says of an object, and says whether that is news.
func (c *Cache) bring(e store.Event) bool {
	version := gone
	if e.Object != nil {
		version = e.Object.Version
	}
	u := c.unseen[e.Key]
	if u == nil {
		return c.take(e)
	}
	came := u.awaited && u.awaits == version
	if came {
		u.awaited = false
	}
	switch {
	case u.writing > 0:
		u.bring(e, version)
		return false
	case !came:
		return false
	}
	delete(c.unseen, e.Key)
	if old := c.objects[e.Key]; old != nil && e.Object != nil && !e.StatusOnly && old.Version == version {
		// Its status may be newer here.
		return false
	}
	return c.take(e)
}
