package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// errNothingWritten: somebody else was there before the first write of a batch.
var errNothingWritten = errors.New("nothing was written")

// pump writes what is not written yet of a batch. The first write is made alone: when it cannot be, nothing has happened.
// It is one that demands a version, if there are such. Namespaces come before what is in them, and go after it.
func (j *Journal) pump(ctx context.Context, r *record) error {
	if len(r.Writes) == 0 {
		return nil
	}
	first := max(slices.IndexFunc(r.Writes, func(c change) bool { return c.Demanded }), 0)
	if c := r.Writes[first]; !r.outcomes[first].done {
		write := j.write
		if r.begun {
			write = j.again
		}
		version, err := write(ctx, c)
		never := errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrTooLarge)
		switch {
		case err == nil:
			r.begun, r.outcomes[first] = true, outcome{done: true, version: version}
		case !r.begun && (never || errors.Is(err, store.ErrFull)):
			return fmt.Errorf("%s: %w: %w", c.Key, err, errNothingWritten)
		case !never:
			return err
		case c.Demanded:
			// It was interrupted before its first write, and somebody else came between.
			for i := range r.Writes {
				r.outcomes[i] = outcome{done: true, left: fmt.Errorf("the batch depends on %s: %w", c.Key, err)}
			}
			return nil
		}
	}
	var stages [4][]int
	for i, c := range r.Writes {
		if !r.outcomes[i].done {
			s := stage(c.write)
			stages[s] = append(stages[s], i)
		}
	}
	var mu sync.Mutex
	for _, indices := range stages {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(writers)
		for _, i := range indices {
			group.Go(func() error {
				c := r.Writes[i]
				version, err := j.again(ctx, c)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrTooLarge):
					r.outcomes[i] = outcome{done: true, left: err}
				case err != nil:
					return fmt.Errorf("%s: %w", c.Key, err)
				default:
					r.outcomes[i] = outcome{done: true, version: version}
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// stage orders the writes of a batch.
func stage(w store.Write) int {
	namespace := w.Key.Group == objects.Namespace.Group && w.Key.Kind == objects.Namespace.Kind
	switch {
	case w.Object != nil && namespace:
		return 0
	case w.Object != nil:
		return 1
	case !namespace:
		return 2
	default:
		return 3
	}
}

func (j *Journal) write(ctx context.Context, c change) (objects.Version, error) {
	w := c.write
	w.IfVersion = c.Before
	if w.Object == nil && c.Before == store.Absent {
		return "", nil
	}
	return j.store.Write(ctx, w)
}

// again makes a change that may have been made before: an object that is as the change would have it is.
func (j *Journal) again(ctx context.Context, c change) (objects.Version, error) {
	version, err := j.write(ctx, c)
	if !errors.Is(err, store.ErrConflict) {
		return version, err
	}
	now, getErr := j.store.Get(ctx, c.Key)
	switch {
	case errors.Is(getErr, store.ErrNotFound):
		if c.write.Object == nil {
			return "", nil
		}
		return "", err
	case getErr != nil:
		return "", getErr
	case c.write.Object != nil && c.same(now):
		return now.Version, nil
	}
	return "", err
}
