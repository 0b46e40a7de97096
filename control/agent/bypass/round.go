package bypass

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

const (
	// shortestPause is how often it is looked whether connections were found since.
	shortestPause = 100 * time.Millisecond
	// longestPause between two rounds, while they find nothing to do.
	longestPause = 5 * time.Second
	// pausePerRound is how long a pause is at the least, in times what the round before took: rounds have a twentieth of a processor.
	pausePerRound = 20
	// maxPasses of a round: one end is seen to be ready, then the other; one is recorded, then the other; and the first sends to it.
	maxPasses = 4
)

// Run makes rounds until ctx ends. failed is told the first error of a row of them.
func (b *Bypass) Run(ctx context.Context, failed func(error)) {
	var due schedule
	var before error
	ticks := time.NewTicker(shortestPause)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		err := b.tick(&due)
		if err != nil && before == nil {
			failed(err)
		}
		before = err
	}
}

// tick makes a round if it is due.
func (b *Bypass) tick(due *schedule) error {
	found, err := b.connections()
	if err != nil || !due.now(found) {
		return err
	}
	began := time.Now()
	changed, err := b.Round()
	due.made(changed, time.Since(began))
	return err
}

// schedule says when a round is due: at once where connections were found since, and else the later the longer nothing came of it, since
// a round looks at each socket. The zero value has one be due.
type schedule struct {
	found        uint64
	since, pause time.Duration
	// least that the pause must be, for what a round takes.
	least time.Duration
}

// now is asked once each shortestPause, with how many connections were found so far.
func (s *schedule) now(found uint64) bool {
	s.since += shortestPause
	if found != s.found {
		s.found, s.pause = found, shortestPause
	}
	if s.since < max(s.pause, s.least) {
		return false
	}
	s.since = 0
	return true
}

// made is told of a round that was due.
func (s *schedule) made(changed bool, took time.Duration) {
	s.least = pausePerRound * took
	if changed {
		s.pause = shortestPause
		return
	}
	s.pause = min(max(2*s.pause, shortestPause), longestPause)
}

// Round looks at every socket that was established since the programs were attached. Connections whose ends are both ready bypass TCP from
// then on, and idle senders give back the room for unread messages that their receivers have read since. changed says whether there was
// anything to do.
func (b *Bypass) Round() (changed bool, err error) {
	for range maxPasses {
		before, err := b.changes()
		if err != nil {
			return changed, err
		}
		if err := b.eachSocket(); err != nil {
			return changed, fmt.Errorf("look through the sockets of the bypass: %w", err)
		}
		after, err := b.changes()
		if err != nil || after == before {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}

func (b *Bypass) changes() (n uint32, err error) {
	if err := b.objects.Variables["changes"].Get(&n); err != nil {
		return 0, fmt.Errorf("read what the bypass has changed: %w", err)
	}
	return n, nil
}

// eachSocket runs the iterator's program for each socket.
func (b *Bypass) eachSocket() error {
	iterator, err := link.AttachIter(link.IterOptions{Program: b.objects.Programs["tend_socket"], Map: b.objects.Maps["states"]})
	if err != nil {
		return err
	}
	defer iterator.Close()
	run, err := iterator.Open()
	if err != nil {
		return err
	}
	defer run.Close()
	for {
		switch _, err := run.Read(make([]byte, 1)); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, unix.EAGAIN): // That is after a million sockets.
			return err
		}
	}
}
