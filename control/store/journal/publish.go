package journal

import (
	"errors"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// errSuperseded: the object was written again before the batch was finished.
var errSuperseded = errors.New("written again since")

// Change is what became of one write.
type Change struct {
	Write store.Write
	// Version of the object after it; empty for a deletion.
	Version objects.Version
	// Left says why the write was given up; nil when it is made.
	Left error
	// Earlier says that it is of a batch that was interrupted before, not of the one that is applied now.
	Earlier bool
	// Number rises from change to change in the order in which they are settled. Those who are told at the same time by
	// two goroutines learn from it which came last.
	Number uint64
}

// Written is told of each change that is made or given up, once its whole batch is settled: exactly once of each write of a
// batch that succeeded or was interrupted.
type Written func(Change)

// publish numbers a change. It is called with the journal locked, so that the numbers are in the order of the writes.
func (j *Journal) publish(c Change, written Written) {
	j.told++
	c.Number = j.told
	written(c)
}

// publishRecord says what became of the writes of a batch that are done.
func (j *Journal) publishRecord(r *record, earlier bool, written Written) {
	for i, o := range r.outcomes {
		if o.done {
			j.publish(Change{Write: r.Writes[i].write, Version: o.version, Left: o.left, Earlier: earlier}, written)
		}
	}
}

// publishSuperseded says which writes were taken out of an interrupted batch.
func (j *Journal) publishSuperseded(r *record, keys map[objects.Key]bool, written Written) {
	for _, c := range r.Writes {
		if keys[c.Key] {
			j.publish(Change{Write: c.write, Left: errSuperseded, Earlier: true}, written)
		}
	}
}

// Waiting are the objects of the interrupted batches; one that is in several of them is named as often.
func (j *Journal) Waiting() []objects.Key {
	j.mu.Lock()
	defer j.mu.Unlock()
	var keys []objects.Key
	for _, r := range j.unfinished {
		for _, c := range r.Writes {
			keys = append(keys, c.Key)
		}
	}
	return keys
}
