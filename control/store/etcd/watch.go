package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// Watch implements [store.Store].
func (s *Store) Watch(ctx context.Context, kind *objects.Kind, after store.Position) (<-chan store.Event, func() error) {
	events := make(chan store.Event, store.QueueLength)
	var failure error
	go func() {
		defer close(events)
		failure = s.follow(ctx, kind, after, events)
	}()
	// The channel's end orders the write of failure before its reading.
	return events, func() error { return failure }
}

func (s *Store) follow(ctx context.Context, kind *objects.Kind, after store.Position, events chan<- store.Event) error {
	revision, err := strconv.ParseInt(string(after), 10, 64)
	if err != nil || revision < 0 {
		return fmt.Errorf("%q is no position of this store: %w", after, store.ErrExpired)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := s.client.Watch(clientv3.WithRequireLeader(ctx), kindPrefix(kind), clientv3.WithPrefix(), clientv3.WithRev(revision+1))
	for {
		var response clientv3.WatchResponse
		var more bool
		select {
		case response, more = <-changes:
		case <-ctx.Done():
			// The channel is closed then, but not always: etcd's client may wait for itself.
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		if !more {
			return store.ErrUnavailable
		}
		if err := response.Err(); err != nil {
			return s.translate(err)
		}
		for n, change := range response.Events {
			// A deleted object's status goes in the same revision, and says nothing of its own.
			e, ok, err := s.event(ctx, change)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			if !ok {
				continue
			}
			// In the midst of a revision that changed several keys, one would not be seen again; one at its beginning would
			// be seen twice, which does no harm.
			e.Position = position(change.Kv.ModRevision)
			if n+1 < len(response.Events) && response.Events[n+1].Kv.ModRevision == change.Kv.ModRevision {
				e.Position = position(change.Kv.ModRevision - 1)
			}
			select {
			case events <- e:
			default:
				return fmt.Errorf("the reader is %d events behind: %w", store.QueueLength, store.ErrExpired)
			}
		}
	}
}

// event makes one of a change of etcd's.
func (s *Store) event(ctx context.Context, change *clientv3.Event) (store.Event, bool, error) {
	at := parseKey(string(change.Kv.Key))
	if at.key.Kind == "" {
		return store.Event{}, false, nil
	}
	e := store.Event{Key: at.key, StatusOnly: at.status}
	switch {
	case change.Type == clientv3.EventTypeDelete:
		return e, !at.status, nil
	case change.IsCreate() && !at.status:
		// It has no status yet.
		var err error
		e.Object, err = s.decode(change.Kv)
		return e, true, err
	}
	o, err := s.at(ctx, at.key, change.Kv.ModRevision)
	if errors.Is(err, store.ErrNotFound) {
		return e, false, nil
	}
	e.Object = o
	return e, true, err
}
