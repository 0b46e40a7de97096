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

// maxTail bounds how many bytes of the past are sent.
const maxTail = 16 << 20

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
	start := max(0, size-maxTail)
	content := make([]byte, size-start)
	n, err := file.ReadAt(content, start)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	content = content[:n]
	if lines >= 0 {
		content = lastLines(content, lines)
	}
	_, err = w.Write(content)
	return size, err
}

func lastLines(content []byte, lines int) []byte {
	if lines == 0 {
		return nil
	}
	end := len(content)
	if end > 0 && content[end-1] == '\n' {
		end--
	}
	for i := end; ; {
		i = bytes.LastIndexByte(content[:i], '\n')
		if i < 0 {
			return content
		}
		if lines--; lines == 0 {
			return content[i+1:]
		}
	}
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
	buffer := make([]byte, 64<<10)
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
