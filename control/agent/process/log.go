package process

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Logs are cut at MaxLogBytes, and LogsKept older pieces are kept beside them as .1, .2, ….
const (
	MaxLogBytes = 10 << 20
	LogsKept    = 3
)

// RotateLogs rotates every log below a directory that has grown past the bound. A process writes to its log itself, in
// append mode, so that it needs no agent to write; the log is therefore copied and truncated rather than renamed. Lines
// written between the two are lost. Of a log of more than twice the bound only its end is kept: a process may write faster than
// is copied, and make its log as long as it likes without writing (ftruncate(2)).
func RotateLogs(dir string, bound int64) error {
	var errs []error
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			// Its workload was deleted a moment ago.
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() || !strings.HasSuffix(path, ".log") {
			return nil
		}
		info, err := d.Info()
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		case info.Size() > bound:
			if err := rotate(path, 2*bound); !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

func rotate(path string, most int64) error {
	for i := LogsKept; i > 1; i-- {
		err := os.Rename(fmt.Sprintf("%s.%d", path, i-1), fmt.Sprintf("%s.%d", path, i))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("rotate log: %w", err)
		}
	}
	from, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	to, err := os.OpenFile(path+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	_, err = io.Copy(to, io.NewSectionReader(from, max(0, info.Size()-most), most))
	if closeErr := to.Close(); err == nil {
		err = closeErr
	}
	// Truncated even when the copy failed, for example on a full disk: the bound is what protects the machine.
	if truncateErr := os.Truncate(path, 0); err == nil {
		err = truncateErr
	}
	if err != nil {
		return fmt.Errorf("rotate log %s: %w", path, err)
	}
	return nil
}
