// Package journal makes changes of several objects in a store that changes one at a time. What a batch is to do is kept in
// the store before its first write and removed after its last, so that an interrupted one is finished:
//
//	looked at ──▶ kept ──▶ written, one by one ──▶ removed
//	    │           └── stopped here: finished by [Journal.Finish], at the latest when the controller starts
//	    └── a version that does not hold: refused, nothing is written
//
// An object that somebody else changed in between is left as it is; the batch goes on without it, and a [Report] says so
// until the object is written again.
//
// A batch whose record, or whose Secrets, want a key that cannot be used waits for it, and keeps no other from being made;
// a [Report] says why.
package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
)

const (
	// MaxBatch is the largest number of changes in one batch: four times what the largest meshes we measure apply at once.
	MaxBatch = 20000
	// writers is how many objects are written at a time. etcd syncs those that arrive together at once, so a batch waits for
	// the disk some two times for each so many objects: on a disk that is busy that is most of what it takes. A Kubernetes API
	// server has those wait that it does not take at once.
	writers = 512
	// writeLimit is how long a batch may take before it counts as interrupted.
	writeLimit = time.Minute
	// maxReports bounds the reports that are kept; the oldest goes first.
	maxReports = 100
)

// Names of the records.
const (
	batchPrefix  = "batch-"
	reportPrefix = "report-"
)

// Report is what became of a batch that could not be finished as it was meant.
type Report struct {
	// ID of the batch.
	ID string `json:"id"`
	// Begun is when.
	Begun time.Time `json:"begun"`
	// Left are the objects that are not as the batch would have them.
	Left []Left `json:"left"`
	// Waits is why the batch, or the report of it, cannot be read or made now; it is looked at again with every
	// [Journal.Finish]. Begun is zero when it cannot be read. Empty for a batch that is settled.
	Waits string `json:"-"`
}

// Left is one object that a batch did not change.
type Left struct {
	Key objects.Key `json:"key"`
	// Why not.
	Why string `json:"why"`
}

// record is a batch as it is kept.
type record struct {
	ID     string    `json:"id"`
	Begun  time.Time `json:"begun"`
	Writes []change  `json:"writes"`
	// begun says that some of it may be written. It is so for all that were read from the store.
	begun bool
	// outcomes of the writes, by index.
	outcomes []outcome
	// waits is why it could not be made when that was tried last, when others need not wait for it.
	waits error
}

// outcome is what became of one write of a batch.
type outcome struct {
	done    bool
	version objects.Version
	// left says why the object is not as the batch would have it.
	left error
}

// left are the objects that are not as the batch would have them.
func (r *record) left() []Left {
	var out []Left
	for i, o := range r.outcomes {
		if o.left != nil {
			out = append(out, Left{Key: r.Writes[i].Key, Why: o.left.Error()})
		}
	}
	return out
}

// secret says whether the content of a Secret is in it.
func (r *record) secret() bool {
	return slices.ContainsFunc(r.Writes, func(c change) bool { return c.write.Object != nil && c.write.Object.Kind == objects.Secret })
}

// change is one write, with the version that the object had when the batch was looked at.
type change struct {
	Key    objects.Key     `json:"key"`
	Object json.RawMessage `json:"object,omitempty"`
	Before objects.Version `json:"before"`
	// Demanded says that whoever made the batch wants none of it without this version.
	Demanded bool `json:"demanded,omitempty"`
	write    store.Write
}

// Journal makes batches in a store. It is safe for concurrent use; batches are made one after the other.
type Journal struct {
	store store.Store
	now   func() time.Time
	id    func() string

	// mu is held while a batch is made, for as long as the store takes.
	mu sync.Mutex
	// unfinished are the batches that are kept and not finished, oldest first.
	unfinished []*record
	// told counts the changes that somebody was told of.
	told uint64
	// closed are the records that cannot be decrypted, by name, and why.
	closed  map[string]error
	reports []Report

	// shown is what can be asked while a batch is made. It is replaced, never changed.
	shown atomic.Pointer[shown]
}

// shown is how the journal stands.
type shown struct {
	unfinished int
	reports    []Report
}

// Open reads what was left. IDs are unique names.
func Open(ctx context.Context, s store.Store, now func() time.Time, id func() string) (*Journal, error) {
	j := &Journal{store: s, now: now, id: id}
	records, closed, err := s.Records().All(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	j.closed = closed
	for name, content := range records {
		if err := j.take(name, content); err != nil {
			return nil, fmt.Errorf("read the journal: %s: %w", name, err)
		}
	}
	j.show()
	return j, nil
}

// take takes up a record that was read.
func (j *Journal) take(name string, content []byte) error {
	switch {
	case strings.HasPrefix(name, batchPrefix):
		r := &record{begun: true}
		if err := json.Unmarshal(content, r); err != nil {
			return err
		}
		for i := range r.Writes {
			c := &r.Writes[i]
			c.write.Key = c.Key
			if c.Object == nil {
				continue
			}
			c.write.Object = new(objects.Object)
			if err := json.Unmarshal(c.Object, c.write.Object); err != nil {
				return fmt.Errorf("%s: %w", c.Key, err)
			}
		}
		r.outcomes = make([]outcome, len(r.Writes))
		j.unfinished = append(j.unfinished, r)
		slices.SortFunc(j.unfinished, func(a, b *record) int { return a.Begun.Compare(b.Begun) })
	case strings.HasPrefix(name, reportPrefix):
		var r Report
		if err := json.Unmarshal(content, &r); err != nil {
			return err
		}
		j.reports = append(j.reports, r)
		slices.SortFunc(j.reports, func(a, b Report) int { return a.Begun.Compare(b.Begun) })
	}
	return nil
}

// reopen looks again at the records that could not be decrypted.
func (j *Journal) reopen(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(j.closed)) {
		content, err := j.store.Records().Get(ctx, name)
		switch {
		case errors.Is(err, seal.ErrClosed):
			j.closed[name] = err
			continue
		case errors.Is(err, store.ErrNotFound):
		case err != nil:
			return fmt.Errorf("read the journal: %w", err)
		default:
			if err := j.take(name, content); err != nil {
				j.closed[name] = fmt.Errorf("%s: %w", name, err)
				continue
			}
		}
		delete(j.closed, name)
	}
	j.show()
	return nil
}

// show has [Journal.Reports] and [Journal.Unfinished] say how the journal stands now.
func (j *Journal) show() {
	s := &shown{unfinished: len(j.unfinished), reports: slices.Clone(j.reports)}
	for _, r := range j.unfinished {
		if r.waits != nil {
			s.reports = append(s.reports, Report{ID: r.ID, Begun: r.Begun, Waits: r.waits.Error()})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.closed)) {
		id, batch := strings.CutPrefix(name, batchPrefix)
		if batch {
			s.unfinished++
		}
		s.reports = append(s.reports, Report{ID: strings.TrimPrefix(id, reportPrefix), Waits: j.closed[name].Error()})
	}
	j.shown.Store(s)
}

// Reports are the batches that were not finished as they were meant, oldest first, and then those that wait for a key. It
// does not wait for the store.
func (j *Journal) Reports() []Report { return slices.Clone(j.shown.Load().reports) }

// Unfinished is how many batches wait to be finished. It does not wait for the store.
func (j *Journal) Unfinished() int { return j.shown.Load().unfinished }

// Apply implements [store.Batch.Apply].
func (j *Journal) Apply(ctx context.Context, writes []store.Write, written Written) error {
	if len(writes) == 0 {
		return nil
	}
	if len(writes) > MaxBatch {
		return fmt.Errorf("%w: %d objects in one batch, and the most is %d: apply them in parts", store.ErrTooLarge, len(writes), MaxBatch)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.show()
	// What is older comes first. Room is made even when there is none to finish it.
	if err := j.finish(ctx, written); err != nil && (!errors.Is(err, store.ErrFull) || slices.ContainsFunc(writes, func(w store.Write) bool { return w.Object != nil })) {
		return fmt.Errorf("an earlier batch is not finished: %w", err)
	}
	if len(writes) == 1 {
		version, err := j.store.Write(ctx, writes[0])
		if err != nil {
			return err
		}
		j.publish(Change{Write: writes[0], Version: version}, written)
		return j.supersede(ctx, writes, written)
	}
	r, err := j.look(ctx, writes)
	if err != nil {
		return err
	}
	content, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("keep the batch: %w", err)
	}
	if len(content) > store.MaxRecordBytes {
		return fmt.Errorf("%w: the batch has %d MiB, and the most is %d: apply it in parts", store.ErrTooLarge, len(content)>>20, store.MaxRecordBytes>>20)
	}
	if err := j.store.Records().Put(ctx, batchPrefix+r.ID, content, r.secret()); err != nil {
		if !errors.Is(err, store.ErrFull) || slices.ContainsFunc(writes, func(w store.Write) bool { return w.Object != nil }) {
			return j.forget(ctx, r, fmt.Errorf("keep the batch: %w", err))
		}
		// Deleting is what makes room. A part of the deletions is as good as the whole, and can be given again.
		err := j.pump(ctx, r)
		j.publishRecord(r, false, written)
		return err
	}
	// From here on it is finished, whether or not somebody still waits for it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeLimit)
	defer cancel()
	err = j.make(ctx, r, written)
	if err == nil {
		return errors.Join(j.supersede(ctx, writes, written), r.conflict())
	}
	return err
}

// forget gives up a batch of which nothing was written.
func (j *Journal) forget(ctx context.Context, r *record, because error) error {
	if err := j.store.Records().Delete(context.WithoutCancel(ctx), batchPrefix+r.ID); err != nil {
		// Whether it is kept is not known, so it may be made later.
		r.begun = true
		j.unfinished = append(j.unfinished, r)
		return fmt.Errorf("%w: %w", store.ErrInterrupted, because)
	}
	return because
}

// look reads which versions the objects have, and refuses the batch when a demanded one does not hold.
func (j *Journal) look(ctx context.Context, writes []store.Write) (*record, error) {
	r := &record{ID: j.id(), Begun: j.now().UTC(), outcomes: make([]outcome, len(writes))}
	keys := make([]objects.Key, len(writes))
	for i, w := range writes {
		if objects.KindOf(w.Key.Group, w.Key.Kind) == nil {
			return nil, fmt.Errorf("%s: there is no such kind", w.Key)
		}
		keys[i] = w.Key
	}
	before, err := j.store.Versions(ctx, keys)
	if err != nil {
		return nil, err
	}
	seen := make(map[objects.Key]bool, len(writes))
	for i, w := range writes {
		if seen[w.Key] {
			return nil, fmt.Errorf("%s is in the batch twice", w.Key)
		}
		seen[w.Key] = true
		if w.IfVersion != "" && w.IfVersion != before[i] {
			return nil, fmt.Errorf("%s: %w", w.Key, store.ErrConflict)
		}
		c := change{Key: w.Key, Before: before[i], Demanded: w.IfVersion != "", write: w}
		if w.Object != nil {
			var err error
			if c.Object, err = content(w.Object); err != nil {
				return nil, err
			}
		}
		r.Writes = append(r.Writes, c)
	}
	return r, nil
}

// content is an object without what the store adds to it.
func content(o *objects.Object) ([]byte, error) {
	bare := *o.WithoutLines()
	bare.Status, bare.Version, bare.StatusVersion = objects.Status{}, "", ""
	return json.Marshal(&bare)
}

// make writes a batch that is kept, and takes it off the journal.
func (j *Journal) make(ctx context.Context, r *record, written Written) error {
	if err := j.pump(ctx, r); err != nil {
		if errors.Is(err, errNothingWritten) {
			return j.forget(ctx, r, err)
		}
		r.begun = true
		j.unfinished = append(j.unfinished, r)
		return fmt.Errorf("%w: %w", store.ErrInterrupted, err)
	}
	if err := j.settle(ctx, r); err != nil {
		r.begun = true
		j.unfinished = append(j.unfinished, r)
		return fmt.Errorf("%w: %w", store.ErrInterrupted, err)
	}
	j.publishRecord(r, false, written)
	return nil
}

// settle takes a batch off the journal that is written, and keeps a report when something of it is left.
func (j *Journal) settle(ctx context.Context, r *record) error {
	if left := r.left(); len(left) > 0 {
		if err := j.report(ctx, Report{ID: r.ID, Begun: r.Begun, Left: left}); err != nil {
			return err
		}
	}
	if err := j.store.Records().Delete(ctx, batchPrefix+r.ID); err != nil {
		return fmt.Errorf("take the batch off the journal: %w", err)
	}
	return nil
}

func (r *record) conflict() error {
	left := r.left()
	if len(left) == 0 {
		return nil
	}
	var names []string
	for _, l := range left[:min(len(left), 5)] {
		names = append(names, l.Key.String())
	}
	return fmt.Errorf("%d objects were left out of the batch, %s: %w; the others are written: apply those again", len(left), strings.Join(names, ", "), store.ErrConflict)
}

// Finish makes what is left of interrupted batches. It is an error when some still wait, of [seal.ErrClosed] or
// [seal.ErrNoKey] when that is for a key.
func (j *Journal) Finish(ctx context.Context, written Written) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.show()
	if err := j.reopen(ctx); err != nil {
		return err
	}
	if err := j.finish(ctx, written); err != nil {
		return err
	}
	var waits []error
	for _, r := range j.unfinished {
		waits = append(waits, r.waits)
	}
	for _, name := range slices.Sorted(maps.Keys(j.closed)) {
		waits = append(waits, j.closed[name])
	}
	if len(waits) == 0 {
		return nil
	}
	return fmt.Errorf("%d interrupted batches wait for a key: %w", len(waits), waits[0])
}

// finish makes what can be made. What waits for a key is passed over: what else is changed does not depend on it, and a
// change that comes before it is one that somebody made in between.
func (j *Journal) finish(ctx context.Context, written Written) error {
	for i := 0; i < len(j.unfinished); {
		r := j.unfinished[i]
		err := j.pump(ctx, r)
		r.waits = nil
		if errors.Is(err, seal.ErrNoKey) {
			r.waits = err
			i++
			continue
		}
		if err == nil {
			err = j.settle(ctx, r)
		}
		if err != nil {
			return err
		}
		j.unfinished = slices.Delete(j.unfinished, i, i+1)
		j.show()
		j.publishRecord(r, true, written)
	}
	return nil
}

// supersede takes objects that were written since out of what is left of older batches and of reports.
func (j *Journal) supersede(ctx context.Context, writes []store.Write, written Written) error {
	keys := make(map[objects.Key]bool, len(writes))
	for _, w := range writes {
		keys[w.Key] = true
	}
	for i, r := range j.unfinished {
		rest := slices.DeleteFunc(slices.Clone(r.Writes), func(c change) bool { return keys[c.Key] })
		if len(rest) == len(r.Writes) {
			continue
		}
		next := &record{ID: j.id(), Begun: r.Begun, Writes: rest, begun: true, outcomes: make([]outcome, len(rest))}
		text, err := json.Marshal(next)
		if err == nil {
			err = j.store.Records().Put(ctx, batchPrefix+next.ID, text, next.secret())
		}
		if err == nil {
			err = j.store.Records().Delete(ctx, batchPrefix+r.ID)
		}
		if errors.Is(err, seal.ErrNoKey) {
			// What is kept stays; whoever reads it again finds another version of the object.
			next.ID, next.waits, err = r.ID, r.waits, nil
		}
		if err != nil {
			return fmt.Errorf("%w: the change is made, but an older batch that names the object still waits: %w", store.ErrInterrupted, err)
		}
		j.unfinished[i] = next
		j.publishSuperseded(r, keys, written)
	}
	return j.resolve(ctx, keys)
}

// same says whether an object in the store is what a change would make of it.
func (c *change) same(o *objects.Object) bool {
	text, err := content(o)
	if err != nil {
		return false
	}
	want, err := content(c.write.Object)
	return err == nil && bytes.Equal(text, want)
}
