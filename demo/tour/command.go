package tour

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// graceTime is how long an interrupted command may take to clean up.
const graceTime = 45 * time.Second

// Step is a command that was run.
type Step struct {
	// Line is the command as a user types it, with tokens shortened.
	Line string
	// Took is how long it lasted.
	Took time.Duration
}

// commands runs heddle, and remembers each run.
type commands struct {
	heddle  string
	display *Display
	steps   []Step
}

// token in a command line is used up when it is shown, and only takes room.
var token = regexp.MustCompile(`hdl1\.[A-Za-z0-9._-]+`)

// line is the command as it is shown.
func line(args []string) string {
	return token.ReplaceAllString("heddle "+strings.Join(args, " "), "hdl1.…")
}

// run runs one command and returns what it printed. A command that fails gives
// an error with all of its output. When ctx ends, the command is interrupted as
// by Ctrl-C, so that it cleans up by itself.
func (c *commands) run(ctx context.Context, args ...string) (string, error) {
	shown := line(args)
	c.display.begin(shown)
	cmd := exec.CommandContext(ctx, c.heddle, args...)
	// A user's choice of cluster must not decide where the tour works.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "HEDDLE_CLUSTER=") })
	var output bytes.Buffer
	cmd.Stdout = io.MultiWriter(&output, &lastLine{say: c.display.say})
	cmd.Stderr = cmd.Stdout
	// In a group of its own, Ctrl-C on the terminal reaches only this program, which passes it on in the right order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = graceTime
	err := cmd.Run()
	took := c.display.end(err != nil)
	c.steps = append(c.steps, Step{Line: shown, Took: took})
	var exit *exec.ExitError
	switch {
	case err == nil:
		return output.String(), nil
	case ctx.Err() != nil:
		return output.String(), context.Cause(ctx)
	case errors.As(err, &exit):
		return output.String(), fmt.Errorf("%s: %w\n%s", shown, err, indent(output.String()))
	}
	return output.String(), fmt.Errorf("%s: %w", shown, err)
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}

// lastLine tells the last line that was written to it, whole or not.
type lastLine struct {
	say  func(string)
	line []byte
}

// maxLine bounds what is kept of a line without an end.
const maxLine = 4096

// escapes are the sequences of a terminal (ECMA-48 CSI).
var escapes = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

func (l *lastLine) Write(text []byte) (int, error) {
	for _, b := range text {
		switch {
		case b == '\n' || b == '\r':
			l.line = l.line[:0]
		case len(l.line) < maxLine:
			l.line = append(l.line, b)
			continue
		}
	}
	if shown := strings.TrimSpace(escapes.ReplaceAllString(string(l.line), "")); shown != "" {
		l.say(shown)
	} else if whole := lastWhole(string(text)); whole != "" {
		l.say(whole)
	}
	return len(text), nil
}

// lastWhole is the last line of a text that is not empty.
func lastWhole(text string) string {
	lines := strings.Split(escapes.ReplaceAllString(text, ""), "\n")
	for _, line := range slices.Backward(lines) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return ""
}
