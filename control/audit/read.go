package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"slices"
	"time"

	"heddle.io/heddle/control/server/client"
)

const (
	// MaxLimit is the greatest number of newest records that can be asked for: of each, the place is kept until all are
	// found.
	MaxLimit = 10000
	// maxReaders read at a time: each decodes whole files and holds them open.
	maxReaders = 4
	// readAtOnce is how much is read of a file from its end, more for a line that is longer.
	readAtOnce = 64 << 10
)

// Read calls f with the lines of the records that a filter chooses, oldest first. A line that a power failure cut off is
// passed over. It reads what is there when it begins, without keeping writers waiting: with a limit from the newest on, and
// only as far as it takes. Files that were ended before filter.Since are not read.
func (l *Log) Read(ctx context.Context, filter client.AuditFilter, f func(line []byte) error) error {
	select {
	case l.readers <- struct{}{}:
		defer func() { <-l.readers }()
	default:
		return &client.Problem{Status: http.StatusTooManyRequests, What: "too many read the audit log", Why: fmt.Sprintf("%d are the limit", maxReaders), Remedy: "try again when one of them is done"}
	}
	if filter.Limit > MaxLimit {
		return &client.Problem{Status: http.StatusBadRequest, What: fmt.Sprintf("the newest %d records cannot be asked for at once", filter.Limit), Why: fmt.Sprintf("%d are the limit", MaxLimit),
			Remedy: "ask for all of them: `heddle audit --limit 0`, with --since"}
	}
	from := []*file{&l.done, &l.signed}
	if filter.Refused {
		from = []*file{&l.refused}
	}
	var series [][]*part
	defer func() {
		for _, parts := range series {
			closeAll(parts)
		}
	}()
	for _, s := range from {
		parts, err := s.parts(filter.Since)
		series = append(series, parts)
		if err != nil {
			return fmt.Errorf("read audit log: %w", err)
		}
	}
	if filter.Limit > 0 {
		return newest(ctx, series, filter, f)
	}
	for e, err := range merged(ctx, series, filter, false) {
		if err == nil {
			err = f(e.line)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// newest gives the newest records, oldest first.
func newest(ctx context.Context, series [][]*part, filter client.AuditFilter, f func(line []byte) error) error {
	type place struct {
		in     *part
		offset int64
		length int
	}
	var found []place
	for e, err := range merged(ctx, series, filter, true) {
		if err != nil {
			return err
		}
		if found = append(found, place{e.in, e.offset, len(e.line)}); len(found) == filter.Limit {
			break
		}
	}
	var line []byte
	for _, p := range slices.Backward(found) {
		line = slices.Grow(line[:0], p.length)[:p.length]
		if _, err := p.in.file.ReadAt(line, p.offset); err != nil {
			return fmt.Errorf("read audit log: %w", err)
		}
		if err := f(line); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// part is a file of a series as far as it is read.
type part struct {
	path string
	file *os.File
	size int64
}

// parts are the files of a series, oldest first, but those that were ended before since.
func (f *file) parts(since time.Time) ([]*part, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	older, err := f.older()
	if err != nil {
		return nil, err
	}
	var out []*part
	for _, path := range older {
		if !f.ended(path).Before(since) {
			out = append(out, &part{path: path})
		}
	}
	// The one that is written is opened at once: it may get another name. Older ones can only go.
	current := &part{path: f.path()}
	if err := current.open(); errors.Is(err, os.ErrNotExist) {
		return out, nil
	} else if err != nil {
		return out, err
	}
	return append(out, current), nil
}

func (p *part) open() error {
	if p.file != nil {
		return nil
	}
	file, err := os.Open(p.path)
	if err != nil {
		return err
	}
	p.file = file
	info, err := file.Stat()
	if err != nil {
		return err
	}
	p.size = info.Size()
	return nil
}

func closeAll(parts []*part) {
	for _, p := range parts {
		if p.file != nil {
			p.file.Close()
		}
	}
}

// lines are the lines of a part with their places, each good until the next. What does not end in a newline is none.
func (p *part) lines(newestFirst bool) iter.Seq2[line, error] {
	return func(yield func(line, error) bool) {
		if err := p.open(); errors.Is(err, os.ErrNotExist) {
			return // It was removed meanwhile.
		} else if err != nil {
			yield(line{}, err)
			return
		}
		if newestFirst {
			p.backward(yield)
		} else {
			p.forward(yield)
		}
	}
}

type line struct {
	offset int64
	text   []byte
}

func (p *part) forward(yield func(line, error) bool) {
	reader := bufio.NewReaderSize(io.NewSectionReader(p.file, 0, p.size), readAtOnce)
	for offset := int64(0); ; {
		text, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return
		}
		if !yield(line{offset, text}, err) || err != nil {
			return
		}
		offset += int64(len(text))
	}
}

func (p *part) backward(yield func(line, error) bool) {
	var buffer []byte
	for left, atOnce := p.size, int64(readAtOnce); left > 0; {
		from := max(0, left-atOnce)
		buffer = slices.Grow(buffer[:0], int(left-from))[:left-from]
		if _, err := p.file.ReadAt(buffer, from); err != nil {
			yield(line{}, err)
			return
		}
		end := len(buffer)
		for end > 0 {
			begin := bytes.LastIndexByte(buffer[:end-1], '\n') + 1
			if begin == 0 && from > 0 {
				break // Its beginning was not read yet.
			}
			if buffer[end-1] == '\n' && !yield(line{from + int64(begin), buffer[begin:end]}, nil) {
				return
			}
			end = begin
		}
		if end == len(buffer) {
			atOnce *= 2
		} else {
			atOnce = readAtOnce
		}
		left = from + int64(end)
	}
}

// entry is a record that was found.
type entry struct {
	time   time.Time
	in     *part
	offset int64
	line   []byte
}

// entries are the records of a series that a filter chooses.
func entries(ctx context.Context, parts []*part, filter client.AuditFilter, newestFirst bool) iter.Seq2[entry, error] {
	if newestFirst {
		parts = slices.Clone(parts)
		slices.Reverse(parts)
	}
	return func(yield func(entry, error) bool) {
		for _, p := range parts {
			for found, err := range p.lines(newestFirst) {
				if err == nil {
					err = ctx.Err()
				}
				if err != nil {
					yield(entry{}, fmt.Errorf("read audit log: %w", err))
					return
				}
				var r Record
				if json.Unmarshal(found.text, &r) != nil || !r.matches(filter) {
					continue
				}
				if !yield(entry{r.Time, p, found.offset, found.text}, nil) {
					return
				}
			}
		}
	}
}

// merged are the records of several series in the order of their times.
func merged(ctx context.Context, series [][]*part, filter client.AuditFilter, newestFirst bool) iter.Seq2[entry, error] {
	if len(series) == 1 {
		return entries(ctx, series[0], filter, newestFirst)
	}
	return func(yield func(entry, error) bool) {
		type head struct {
			entry
			next func() (entry, error, bool)
		}
		var heads []*head
		advance := func(h *head) (more bool, err error) {
			h.entry, err, more = h.next()
			return more, err
		}
		for _, parts := range series {
			next, stop := iter.Pull2(entries(ctx, parts, filter, newestFirst))
			defer stop()
			heads = append(heads, &head{next: next})
		}
		var err error
		heads = slices.DeleteFunc(heads, func(h *head) bool {
			more, failure := advance(h)
			err = errors.Join(err, failure)
			return !more
		})
		for len(heads) > 0 {
			if err != nil {
				yield(entry{}, err)
				return
			}
			best := 0
			for i, h := range heads[1:] {
				if newestFirst && !h.time.Before(heads[best].time) || !newestFirst && h.time.Before(heads[best].time) {
					best = i + 1
				}
			}
			if !yield(heads[best].entry, nil) {
				return
			}
			var more bool
			if more, err = advance(heads[best]); !more {
				heads = slices.Delete(heads, best, best+1)
			}
		}
	}
}
