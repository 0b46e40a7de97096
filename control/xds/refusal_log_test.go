package xds

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

// refused is a log of refusals, with what it says and what it is to do later.
type refused struct {
	*refusalLog
	text  bytes.Buffer
	later []func()
}

func newRefused() *refused {
	r := &refused{}
	r.refusalLog = newRefusalLog(slog.New(slog.NewTextHandler(&r.text, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}})), func(_ time.Duration, then func()) { r.later = append(r.later, then) })
	return r
}

// says checks the lines since it was called last.
func (r *refused) says(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(r.text.String()) {
		got = append(got, strings.TrimSpace(line))
	}
	r.text.Reset()
	if !slices.Equal(got, want) {
		t.Fatalf("the log says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// passes has a pause be over.
func (r *refused) passes(t *testing.T) {
	t.Helper()
	if len(r.later) != 1 {
		t.Fatalf("%d flushes are due", len(r.later))
	}
	then := r.later[0]
	r.later = nil
	then()
}

func TestARefusalIsLoggedOncePerReason(t *testing.T) {
	r := newRefused()
	for i := range 1000 {
		r.note(fmt.Sprint("p", i), Clusters, "no")
	}
	r.note("q", Listeners, "no")
	r.says(t, `msg="proxy refused configuration" proxy=p0 type=CDS reason=no`, `msg="proxy refused configuration" proxy=q type=LDS reason=no`)
	r.passes(t)
	r.says(t, `msg="more refusals of configuration" refusals=999 type=CDS reason=no`)
	r.note("q", Listeners, "no")
	r.says(t, `msg="proxy refused configuration" proxy=q type=LDS reason=no`)
	// Nothing more is counted, and in the end nothing is due.
	r.passes(t)
	r.says(t)
	if len(r.more)+len(r.later) != 0 {
		t.Errorf("left are %v, and %d flushes", r.more, len(r.later))
	}
}

func TestReasonsOfRefusalsAreBounded(t *testing.T) {
	r := newRefused()
	for i := range 10000 {
		r.note("p", Clusters, fmt.Sprint("no ", i, strings.Repeat("!", 2*maxWords)))
	}
	if got := strings.Count(r.text.String(), "\n"); got != maxReasons+1 || r.text.Len() > got*2*maxWords {
		t.Errorf("%d lines of %d bytes", got, r.text.Len())
	}
	r.text.Reset()
	r.passes(t)
	r.says(t, fmt.Sprintf(`msg="more refusals of configuration" refusals=%d type=CDS reason="other reasons"`, 10000-maxReasons-1))
}
