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
	// maxPasses of a round: one end is seen to be ready, then the other; one is recorded, then the other. The next round has them send.
	maxPasses = 4
)

// Run makes rounds until ctx ends. outcome is told how one went that went otherwise than the one before: its error, or nil.
func (b *Bypass) Run(ctx context.Context, outcome func(error)) {
	var due schedule
	changes := news{tell: outcome}
	ticks := time.NewTicker(shortestPause)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		if made, err := b.tick(&due); made {
			changes.round(err)
		}
	}
}

// news tells of rounds that went otherwise than the one before. The first is to go well.
type news struct {
	tell    func(error)
	failing bool
}

func (n *news) round(err error) {
	if failed := err != nil; failed != n.failing {
		n.failing = failed
		n.tell(err)
	}
}

// tick makes a round if it is due.
func (b *Bypass) tick(due *schedule) (made bool, err error) {
	found, err := b.connections()
	if err != nil {
		return true, err
	}
	if !due.now(found) {
		return false, nil
	}
	began := time.Now()
	changed, err := b.Round()
	due.made(changed, time.Since(began))
	return true, err
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

// Round looks at every socket that may bypass TCP. Connections of which both ends are found to be ready do so from the next round on, and idle
// senders give back the room for unread messages that their receivers have read since. changed says whether there was anything to do.
func (b *Bypass) Round() (changed bool, err error) {
	if err := b.number(); err != nil {
		return false, err
	}
	before, err := b.changes()
	if err != nil {
		return false, err
	}
	for range maxPasses {
		if err := b.eachSocket(); err != nil {
			return changed, fmt.Errorf("look through the sockets of the bypass: %w", err)
		}
		after, err := b.changes()
		if err != nil || after == before {
			return changed, err
		}
		before, changed = after, true
	}
	return changed, nil
}

// number has the round be another one than that before.
func (b *Bypass) number() error {
	var n uint32
	v := b.objects.Variables["this_round"]
	if err := v.Get(&n); err != nil {
		return fmt.Errorf("read the number of the bypass' last round: %w", err)
	}
	if err := v.Set(n + 1); err != nil {
		return fmt.Errorf("set the number of the bypass' round: %w", err)
	}
	return nil
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
		case err != nil && !errors.Is(err, unix.EAGAIN): // That is after a million sockets; a byte comes after some thousands.
			return err
		}
	}
}
