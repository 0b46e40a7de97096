package etcd

import (
	"context"
	"errors"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// Watch implements [store.Store].
func (s *Store) Watch(ctx context.Context, after int64) (<-chan []store.Event, func() error) {
	events := make(chan []store.Event)
	var failure error
	go func() {
		defer close(events)
		failure = s.follow(ctx, after, events)
	}()
	// The channel's end orders the write of failure before its reading.
	return events, func() error { return failure }
}

func (s *Store) follow(ctx context.Context, after int64, events chan<- []store.Event) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := s.client.Watch(clientv3.WithRequireLeader(ctx), "/heddle/", clientv3.WithPrefix(), clientv3.WithRev(after+1))
	for response := range changes {
		if err := response.Err(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return translate(err)
		}
		// etcd may put several revisions into one response; each is a batch of its own.
		for from := 0; from < len(response.Events); {
			revision := response.Events[from].Kv.ModRevision
			to := from
			for to < len(response.Events) && response.Events[to].Kv.ModRevision == revision {
				to++
			}
			batch, err := s.batch(ctx, revision, response.Events[from:to])
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			from = to
			if len(batch) == 0 {
				continue
			}
			select {
			case events <- batch:
			case <-ctx.Done():
				return nil
			}
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return store.ErrUnavailable
}

// batch turns the changes of one revision into events, one for each object.
func (s *Store) batch(ctx context.Context, revision int64, changes []*clientv3.Event) ([]store.Event, error) {
	var order []string
	specChanged := map[string]bool{}
	for _, change := range changes {
		key := string(change.Kv.Key)
		path, spec := strings.CutPrefix(key, specs)
		if !spec {
			var status bool
			if path, status = strings.CutPrefix(key, statuses); !status {
				continue
			}
		}
		if _, seen := specChanged[path]; !seen {
			order = append(order, path)
		}
		specChanged[path] = specChanged[path] || spec
	}
	var batch []store.Event
	for _, path := range order {
		event := store.Event{Key: parsePath(path), Revision: revision, StatusOnly: !specChanged[path]}
		o, err := s.at(ctx, path, revision)
		switch {
		case err == nil:
			event.Object = o
		case !errors.Is(err, store.ErrNotFound):
			return nil, err
		case event.StatusOnly:
			continue // A status that went with its object.
		}
		batch = append(batch, event)
	}
	return batch, nil
}

func parsePath(path string) objects.Key {
	parts := strings.SplitN(path, "/", 4)
	for len(parts) < 4 {
		parts = append(parts, "")
	}
	key := objects.Key{Group: parts[0], Kind: parts[1], Namespace: parts[2], Name: parts[3]}
	if key.Group == "core" {
		key.Group = ""
	}
	if key.Namespace == "_" {
		key.Namespace = ""
	}
	return key
}
