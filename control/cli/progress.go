package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// progress shows what a long command is doing: on a terminal one line that is rewritten, elsewhere a line per step.
type progress struct {
	out      io.Writer
	terminal bool
	step     string
	began    time.Time
}

func newProgress(out io.Writer) *progress {
	f, ok := out.(*os.File)
	return &progress{out: out, terminal: ok && term.IsTerminal(int(f.Fd()))}
}

// begin starts a step.
func (p *progress) begin(step string) {
	p.step, p.began = step, time.Now()
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K  … %s", step)
	}
}

// note shows what the step waits for.
func (p *progress) note(text string) {
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K  … %s: %s", p.step, text)
	}
}

// done ends the step well.
func (p *progress) done() {
	took := ""
	if d := time.Since(p.began); d >= time.Second {
		took = fmt.Sprintf(" (%.1f s)", d.Seconds())
	}
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	fmt.Fprintf(p.out, "  ✓ %s%s\n", p.step, took)
}

// fail ends the step badly.
func (p *progress) fail() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	fmt.Fprintf(p.out, "  ✗ %s\n", p.step)
}
