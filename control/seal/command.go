package seal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// commandTime bounds one run of the command.
	commandTime = 10 * time.Second
	// commandGrace is for its children to let go of the pipes once it was killed.
	commandGrace = time.Second
	// maxWrapped bounds what it prints, and maxSaid what is kept of its complaints, in bytes.
	maxWrapped, maxSaid = 16 << 10, 4 << 10
)

// command is a program that wraps keys with a key management service, and unwraps them:
//
//	PROGRAM wrap     reads a key in base64, prints text of its own, by which it finds the key again
//	PROGRAM unwrap   reads that text, prints the key in base64
//
// Each reads standard input to its end, prints one line, and ends with the code 0 within ten seconds; otherwise the first
// line of its standard error says why not. It runs as root, in the controller's environment.
type command struct {
	path string
	// limit is [commandTime] but in tests.
	limit time.Duration
}

// check finds what is wrong with the program before it is needed.
func (c command) check() error {
	problem := func(what string) error {
		return fmt.Errorf("KMS command %s: %s; --kms-command takes the path of a program that only root can write", c.path, what)
	}
	if !filepath.IsAbs(c.path) {
		return problem("the path is not absolute")
	}
	info, err := os.Stat(c.path)
	if err != nil {
		return problem(err.Error())
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode(); {
	case !mode.IsRegular() || mode&0o111 == 0:
		return problem("it is no program")
	case mode&0o022 != 0:
		return problem(fmt.Sprintf("others may write it (mode %04o)", mode.Perm()))
	case ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return problem(fmt.Sprintf("it belongs to user %d", stat.Uid))
	}
	return nil
}

// CheckCommand says why a program cannot wrap keys, as far as can be seen without running it.
func CheckCommand(path string) error { return command{path: path}.check() }

// run has the program do one thing. Neither what it reads nor what it prints is in the error.
func (c command) run(ctx context.Context, verb, input string) (string, error) {
	if err := c.check(); err != nil {
		return "", err
	}
	limit := c.limit
	if limit == 0 {
		limit = commandTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var out, said bounded
	out.limit, said.limit = maxWrapped, maxSaid
	cmd := exec.CommandContext(ctx, c.path, verb)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = strings.NewReader(input), &out, &said, "/"
	// Killed with what it started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = commandGrace
	err := cmd.Run()
	text := strings.TrimSpace(out.text.String())
	switch {
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("no answer within %v", limit)
	case err != nil:
		first, _, _ := strings.Cut(strings.TrimSpace(said.text.String()), "\n")
		if first = strings.ReplaceAll(first, input, "[redacted]"); first != "" {
			err = fmt.Errorf("%w: %s", err, first)
		}
	case out.over:
		err = fmt.Errorf("it printed more than %d bytes", maxWrapped)
	case text == "":
		err = errors.New("it printed nothing")
	case verb == "wrap" && strings.Contains(text, input):
		err = errors.New("what it printed has the key in it, unwrapped")
	default:
		return text, nil
	}
	return "", fmt.Errorf("KMS command %s %s: %w; `heddle secrets status` says whether it works again", c.path, verb, err)
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	text  bytes.Buffer
	limit int
	over  bool
}

var _ io.Writer = (*bounded)(nil)

func (b *bounded) Write(p []byte) (int, error) {
	if room := b.limit - b.text.Len(); len(p) > room {
		b.over = true
		b.text.Write(p[:room])
		return len(p), nil
	}
	return b.text.Write(p)
}
