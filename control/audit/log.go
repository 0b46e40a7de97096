package audit

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"heddle.io/heddle/control/server/client"
)

// Bounds of the log. Refusals and signings have files of their own: whoever may do nothing, and workloads whose certificates
// are renewed, cannot push out what people did.
const (
	defaultSize = 16 << 20
	defaultKeep = 63
	refusedSize = 4 << 20
	refusedKeep = 3
	// refusalBurst and refusalInterval bound how many refusals are recorded; the others are counted.
	refusalBurst    = 200
	refusalInterval = 100 * time.Millisecond
)

// Options of a log.
type Options struct {
	// Dir holds the files; only root can read it.
	Dir string
	// Size of one file in bytes, 16 MiB by default, and Keep, how many older ones there are, 63 by default, of changes
	// and as many of signings: with the defaults a gibibyte each, which is several million records.
	Size int64
	Keep int
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// Log is a cluster's audit log. It is safe for concurrent use.
type Log struct {
	options  Options
	done     file
	signed   file
	refused  file
	refusals *rate.Limiter
	// changes bounds what each caller's changes take.
	changes budgets
	// excess counts changes that were refused because of it.
	excess atomic.Uint64
	// readers holds an element for each that reads.
	readers chan struct{}
	// unrecorded counts refusals since the last one that was recorded.
	unrecorded atomic.Uint64
}

// Open opens or makes a log.
func Open(o Options) (*Log, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Size == 0 {
		o.Size = defaultSize
	}
	if o.Keep == 0 {
		o.Keep = defaultKeep
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	l := &Log{options: o, refusals: rate.NewLimiter(rate.Every(refusalInterval), refusalBurst), readers: make(chan struct{}, maxReaders)}
	series := func(name string, size int64, keep int) file {
		return file{dir: o.Dir, name: name, size: size, keep: keep, now: o.Now, log: o.Log, fsync: (*os.File).Sync}
	}
	l.done = series("audit", o.Size, o.Keep)
	l.signed = series("signings", o.Size, o.Keep)
	l.refused = series("refused", refusedSize, refusedKeep)
	// A controller starts on a full disk, too: then it only reads. What cannot be written later is refused then.
	for _, f := range []*file{&l.done, &l.signed} {
		if err := f.open(); err != nil && !full(err) {
			return nil, fmt.Errorf("audit log: %w", err)
		}
	}
	return l, nil
}

// Begin records, durably, that something is about to be done, and returns what ends it, with what is known only then. The
// error is the [*client.Problem] with which the change is to be refused.
func (l *Log) Begin(r Record) (func(detail string, failure error), error) {
	r.ID, r.Result = rand.Text(), Begun
	if err := l.write(&l.done, r); err != nil {
		return nil, err
	}
	return func(detail string, failure error) {
		r.Objects, r.Detail, r.Result = nil, detail, Done
		if failure != nil {
			r.Result, r.Why = Failed, failure.Error()
		}
		// It was recorded that it was begun, by whom and how: the end can follow with the next sync.
		r.Time = l.options.Now().UTC()
		if err := l.done.add(encode(r), false); err != nil {
			l.options.Log.Error("the end of an action is not in the audit log", "id", r.ID, "who", r.Who, "action", r.Action, "result", r.Result, "error", err)
		}
	}, nil
}

// Signed records, durably, what was made and is about to be handed out. The error is the [*client.Problem] with which it
// is to be refused.
func (l *Log) Signed(r Record) error {
	r.ID, r.Result = rand.Text(), Done
	return l.write(&l.signed, r)
}

// SignedOwn records a certificate that a cluster's authority made for the cluster itself, before it is used.
func (l *Log) SignedOwn(name, serial string, expires time.Time) error {
	return l.Signed(Record{Who: "controller", Action: Sign, Objects: []Object{{Name: name}}, Detail: "serial " + serial + ", until " + expires.UTC().Format(time.RFC3339)})
}

func (l *Log) write(to *file, r Record) error {
	r.Time = l.options.Now().UTC()
	line := encode(r)
	if r.Caller != "" {
		// Its end is a line of the same room at most, but for why it failed.
		if err := l.changes.take(r.Caller, 2*len(line), r.Time); err != nil {
			l.excess.Add(1)
			return err
		}
	}
	err := to.add(line, true)
	if err == nil {
		to.failed.Store(0)
		return nil
	}
	if to.failed.Swap(r.Time.UnixNano()) == 0 {
		l.options.Log.Error("the audit log cannot be written: what belongs there is refused", "file", to.path(), "error", err)
	}
	remedy := "see whether the directory can be written, and `heddle logs --controller`"
	if full(err) {
		remedy = "make room on the disk; then it works again by itself"
	}
	return &client.Problem{Status: http.StatusServiceUnavailable, What: "nothing was changed: it cannot be recorded in the audit log", Where: l.options.Dir, Why: err.Error(), Remedy: remedy}
}

// Refused records that a caller had not the role. That is tried, up to a rate, and its failure changes nothing.
func (l *Log) Refused(r Record) {
	now := l.options.Now()
	if !l.refusals.AllowN(now, 1) {
		l.unrecorded.Add(1)
		return
	}
	r.ID, r.Result, r.Time, r.Unrecorded = rand.Text(), Refused, now.UTC(), l.unrecorded.Swap(0)
	if err := l.refused.add(encode(r), false); err != nil {
		l.unrecorded.Add(1 + r.Unrecorded)
		l.options.Log.Debug("refusal not recorded", "error", err)
	}
}

// Problem says why changes or signings are refused, empty when they are not.
func (l *Log) Problem() string {
	var problems []string
	for what, f := range map[string]*file{"changes": &l.done, "signings": &l.signed} {
		if at := f.failed.Load(); at != 0 {
			problems = append(problems, "the audit log could not be written at "+time.Unix(0, at).UTC().Format(time.RFC3339)+": "+what+" are refused")
		}
	}
	slices.Sort(problems)
	return strings.Join(problems, "; ")
}

// Close syncs the log and closes it.
func (l *Log) Close() error { return errors.Join(l.done.close(), l.signed.close(), l.refused.close()) }

// encode gives a record's line.
func encode(r Record) []byte {
	// A struct of strings and times always encodes.
	line, err := json.Marshal(r)
	if err != nil {
		line = []byte("{}")
	}
	return append(line, '\n')
}

func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}
