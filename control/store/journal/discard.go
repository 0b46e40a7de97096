package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// errDiscarded: somebody gave the batch up.
var errDiscarded = errors.New("the batch was given up")

// Discard gives up an interrupted batch that waits for a key, or a report that does, by the identifier that its [Report] has:
// its key is lost for good. What of it is made stays; the objects that are not, as far as they can be read, are returned and
// reported until they are written again. It is [store.ErrNotFound] when nothing of that name waits.
func (j *Journal) Discard(ctx context.Context, id string, written Written) ([]objects.Key, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.show()
	for _, name := range []string{batchPrefix + id, reportPrefix + id} {
		if j.closed[name] == nil {
			continue
		}
		if err := j.store.Records().Delete(ctx, name); err != nil {
			return nil, fmt.Errorf("give up the batch: %w", err)
		}
		delete(j.closed, name)
		return nil, nil
	}
	i := slices.IndexFunc(j.unfinished, func(r *record) bool { return r.ID == id })
	if i < 0 || j.unfinished[i].waits == nil {
		return nil, fmt.Errorf("no batch %q waits for a key: %w", id, store.ErrNotFound)
	}
	r := j.unfinished[i]
	var left []objects.Key
	for n := range r.Writes {
		if o := &r.outcomes[n]; !o.done {
			*o = outcome{done: true, left: errDiscarded}
			left = append(left, r.Writes[n].Key)
		}
	}
	if err := j.settle(ctx, r); err != nil {
		// It is looked at again, and may be made: nothing was given up.
		for n := range r.Writes {
			if errors.Is(r.outcomes[n].left, errDiscarded) {
				r.outcomes[n] = outcome{}
			}
		}
		return nil, fmt.Errorf("give up the batch: %w", err)
	}
	j.unfinished = slices.Delete(j.unfinished, i, i+1)
	j.publishRecord(r, true, written)
	return left, nil
}
