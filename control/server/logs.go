package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"heddle.io/heddle/control/server/client"
)

// part is a log file's name without its ending, name a namespace or a replica: nothing that leaves the directory.
var (
	partPattern = regexp.MustCompile(`^(app|proxy|controller|agent)$`)
	namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
)

// maxTail bounds how many bytes of the past are sent, logPiece how many are held of a log at a time.
const (
	maxTail  = 16 << 20
	logPiece = 64 << 10
)

// followInterval is how often a followed log is looked at.
const followInterval = 200 * time.Millisecond

// handleLogs sends a log, and with follow=1 what is appended to it until the client goes away.
func (s *Server) handleLogs(w http.ResponseWriter, r *http.Request) {
	namespace, replica, part := r.PathValue("namespace"), r.PathValue("replica"), r.PathValue("part")
	if !partPattern.MatchString(part) || replica != "" && (!namePattern.MatchString(namespace) || !namePattern.MatchString(replica)) {
		refuse(w, &client.Problem{Status: http.StatusBadRequest, What: "no such log", Where: r.URL.Path, Remedy: "parts are app, proxy, controller and agent"})
		return
	}
	tail := -1
	if text := r.URL.Query().Get("tail"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < -1 {
			refuse(w, &client.Problem{Status: http.StatusBadRequest, What: "tail is not a number of lines", Where: text})
			return
		}
		tail = n
	}
	if !take(s.logs, w, r, "logs are being read") {
		return
	}
	defer giveBack(s.logs, r)
	file, err := os.Open(filepath.Join(s.config.Logs, namespace, replica, part+".log"))
	if err != nil {
		problem := &client.Problem{Status: http.StatusNotFound, What: "there is no log yet", Where: namespace + "/" + replica, Remedy: "`heddle ps` shows what runs"}
		if !errors.Is(err, os.ErrNotExist) {
			problem.Status, problem.Why = http.StatusInternalServerError, err.Error()
		}
		refuse(w, problem)
		return
	}
	defer file.Close()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	offset, err := sendTail(w, file, tail)
	if err != nil || r.URL.Query().Get("follow") == "" {
		return
	}
	follow(r.Context(), w, file, offset)
}

// sendTail sends the last lines (all when negative, within the bound) and returns where the file ended.
func sendTail(w io.Writer, file *os.File, lines int) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	size := info.Size()
	buffer := make([]byte, logPiece)
	start, err := startOfTail(file, size, lines, buffer)
	if err != nil {
		return 0, err
	}
	// Piece by piece: a write waits for as long as the client does not read. One that fills a buffer of its own holds less.
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, io.NewSectionReader(file, start, size-start), buffer)
	return size, err
}

// startOfTail looks backwards for where the last lines begin, no further than the bound.
func startOfTail(file io.ReaderAt, size int64, lines int, buffer []byte) (int64, error) {
	first := max(0, size-maxTail)
	switch {
	case lines < 0:
		return first, nil
	case lines == 0:
		return size, nil
	}
	for end := size; end > first; {
		start := max(first, end-int64(len(buffer)))
		piece := buffer[:end-start]
		n, err := file.ReadAt(piece, start)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		// The end of the last line is none of those that are counted.
		i := n
		if end == size && n > 0 && piece[n-1] == '\n' {
			i--
		}
		for i = bytes.LastIndexByte(piece[:i], '\n'); i >= 0; i = bytes.LastIndexByte(piece[:i], '\n') {
			if lines--; lines == 0 {
				return start + int64(i) + 1, nil
			}
		}
		end = start
	}
	return first, nil
}

// follow sends what is appended. A file that became shorter was rotated: it is read from its start.
func follow(ctx context.Context, w http.ResponseWriter, file *os.File, offset int64) {
	flusher, ok := w.(http.Flusher)
	if !ok {
		return
	}
	flusher.Flush()
	ticker := time.NewTicker(followInterval)
	defer ticker.Stop()
	buffer := make([]byte, logPiece)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if info, err := file.Stat(); err == nil && info.Size() < offset {
			offset = 0
		}
		for {
			n, err := file.ReadAt(buffer, offset)
			if n > 0 {
				if _, err := w.Write(buffer[:n]); err != nil {
					return
				}
				offset += int64(n)
			}
			if err != nil {
				break
			}
		}
		flusher.Flush()
	}
}
