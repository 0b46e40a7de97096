package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"heddle.io/heddle/control/server/client"
)

// maxKept bounds how many records a reader who wants only the newest is given.
const maxKept = 10000

// Read calls f with the lines of the records that a filter chooses, oldest first. A line that a power failure cut off is
// passed over. It reads what is there when it begins, without keeping writers waiting.
func (l *Log) Read(filter client.AuditFilter, f func(line []byte) error) error {
	from := &l.done
	if filter.Refused {
		from = &l.refused
	}
	from.mu.Lock()
	files, err := from.files()
	from.mu.Unlock()
	if err != nil {
		return fmt.Errorf("read audit log: %w", err)
	}
	if filter.Limit > maxKept {
		filter.Limit = maxKept
	}
	// With a limit the newest are wanted, so that all have to be seen before the first is given.
	var newest [][]byte
	give := f
	if filter.Limit > 0 {
		give = func(line []byte) error {
			if newest = append(newest, bytes.Clone(line)); len(newest) > filter.Limit {
				newest = newest[1:]
			}
			return nil
		}
	}
	for _, path := range files {
		if err := readFile(path, filter, give); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	for _, line := range newest {
		if err := f(line); err != nil {
			return err
		}
	}
	return nil
}

func readFile(path string, filter client.AuditFilter, f func([]byte) error) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read audit log: %w", err)
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			// What does not end in a newline is being written.
			return nil
		}
		if err != nil {
			return fmt.Errorf("read audit log: %w", err)
		}
		var r Record
		if json.Unmarshal(line, &r) != nil || !r.matches(filter) {
			continue
		}
		if err := f(line); err != nil {
			return err
		}
	}
}
