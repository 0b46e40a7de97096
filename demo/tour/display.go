package tour

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Display shows the progress of the tour: on a terminal one line that is
// rewritten while a step lasts, and everywhere a line for each step that ended.
type Display struct {
	out      io.Writer
	terminal bool
	now      func() time.Time

	mu    sync.Mutex
	step  string
	note  string
	began time.Time
	stop  chan struct{}
	ended chan struct{}
}

// NewDisplay makes a display that writes to out.
func NewDisplay(out io.Writer, now func() time.Time) *Display {
	f, ok := out.(*os.File)
	return &Display{out: out, terminal: ok && term.IsTerminal(int(f.Fd())), now: now}
}

// clearLine goes back to the start of the line and empties it (ECMA-48 EL).
const clearLine = "\r\x1b[K"

// begin starts a step.
func (d *Display) begin(step string) {
	d.mu.Lock()
	d.step, d.note, d.began = step, "", d.now()
	d.mu.Unlock()
	if !d.terminal {
		return
	}
	d.stop, d.ended = make(chan struct{}), make(chan struct{})
	d.redraw()
	go func() {
		defer close(d.ended)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-d.stop:
				return
			case <-tick.C:
				d.redraw()
			}
		}
	}()
}

func (d *Display) redraw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	line := fmt.Sprintf("  … %s %.1f s", d.step, d.now().Sub(d.began).Seconds())
	if d.note != "" {
		line += ": " + d.note
	}
	if f, ok := d.out.(*os.File); ok {
		// A line that wraps could not be rewritten.
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			line = clip(line, width-1)
		}
	}
	fmt.Fprint(d.out, clearLine+line)
}

// say notes what the step is at.
func (d *Display) say(note string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note = note
}

// end ends the step and returns how long it took.
func (d *Display) end(failed bool) time.Duration {
	if d.terminal {
		close(d.stop)
		<-d.ended
		fmt.Fprint(d.out, clearLine)
	}
	took := d.now().Sub(d.began)
	mark := "✓"
	if failed {
		mark = "✗"
	}
	fmt.Fprintf(d.out, "  %s %s (%.1f s)\n", mark, d.step, took.Seconds())
	return took
}

// clip shortens a line to a number of characters.
func clip(line string, length int) string {
	line = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, line)
	runes := []rune(line)
	if length <= 0 || len(runes) <= length {
		return line
	}
	return string(runes[:length-1]) + "…"
}
