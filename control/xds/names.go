package xds

import (
	"iter"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/control/peer"
)

// What a stream may name, of all types together: how many, and their bytes. A proxy names what it has, which comes in messages of
// 4 MiB. Listeners are named beside all others by who learns what it uses, which has 4096 at most.
const (
	maxNames     = 1 << 17
	maxNameBytes = 8 << 20
	maxListeners = 1 << 13
)

// tally is how many names there are, and their bytes.
type tally struct{ names, bytes int }

func (t *tally) add(o tally) { t.names, t.bytes = t.names+o.names, t.bytes+o.bytes }

// nameSet is a set of names. It tallies those that are there by the word of the proxy: others are the mesh's, whose text all proxies
// share. The zero value is empty.
type nameSet struct {
	// said has for each name whether it is there by the word of the proxy.
	said  map[string]bool
	tally tally
}

func (s *nameSet) has(name string) bool {
	_, has := s.said[name]
	return has
}

func (s *nameSet) len() int { return len(s.said) }

// all says whether something is so of each name.
func (s *nameSet) all(is func(name string) bool) bool {
	for name := range s.said {
		if !is(name) {
			return false
		}
	}
	return true
}

// add puts in a name. One that is there stays as it was.
func (s *nameSet) add(name string, said bool) {
	if s.has(name) {
		return
	}
	if s.said == nil {
		s.said = map[string]bool{}
	}
	if s.said[name] = said; said {
		s.tally.add(tally{1, len(name)})
	}
}

func (s *nameSet) remove(name string) {
	if s.said[name] {
		s.tally.add(tally{-1, -len(name)})
	}
	delete(s.said, name)
}

// namesWithin says whether all of these may be names.
func namesWithin(names iter.Seq[string]) bool {
	for name := range names {
		if len(name) > peer.MaxName {
			return false
		}
	}
	return true
}

// bounded is an error when the stream holds more names than it may. The proxy's lock is held.
func (p *Proxy) bounded() error {
	var held tally
	for t := range p.types {
		sub := &p.types[t]
		held.add(sub.names.tally)
		held.add(sub.dirty.tally)
		held.add(sub.batchSaid)
	}
	switch {
	case held.names > maxNames:
		return p.namesRefused("a stream may name %d resources, and this one names %d", maxNames, held.names)
	case held.bytes > maxNameBytes:
		return p.namesRefused("a stream may name resources with %d bytes of names, and this one's have %d", maxNameBytes, held.bytes)
	case p.types[Listeners].names.len() > maxListeners:
		return p.tooManyListeners()
	}
	return nil
}

func (p *Proxy) tooManyListeners() error {
	return p.namesRefused("a stream may name %d listeners, and this one names more", maxListeners)
}

func (p *Proxy) namesRefused(format string, of ...any) error {
	p.server.metrics.namesRefused.Inc()
	return status.Errorf(codes.ResourceExhausted, format, of...)
}

// longName refuses a request.
func (p *Proxy) longName() error {
	return p.namesRefused("a resource's name may have %d bytes, and the request has a longer one", peer.MaxName)
}
