package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"heddle.io/heddle/control/store"
)

// translate gives etcd's errors the store's names.
func (s *Store) translate(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	case errors.Is(err, rpctypes.ErrCompacted):
		return store.ErrExpired
	case errors.Is(err, rpctypes.ErrNoSpace):
		s.full.raise()
		return fmt.Errorf("%w: %w: etcd's quota is used up; delete objects that are not needed, and there is room again a few seconds later", store.ErrUnavailable, store.ErrFull)
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return fmt.Errorf("%w: etcd takes smaller requests than %d KiB: set --max-request-bytes there", store.ErrTooLarge, maxObjectBytes>>10)
	default:
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
}

func isCompacted(err error) bool { return errors.Is(err, rpctypes.ErrCompacted) }
