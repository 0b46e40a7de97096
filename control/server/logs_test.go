package server

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pieces is a client that reads, and notes how much the server held of the log each time it was given some.
type pieces struct {
	bytes.Buffer
	largest int
}

func (p *pieces) Write(b []byte) (int, error) {
	p.largest = max(p.largest, len(b))
	return p.Buffer.Write(b)
}

// A log is held in pieces, however much of it is asked for: a client that does not read has the server hold one.
func TestLogsAreHeldInPieces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.log")
	var text strings.Builder
	for i := 0; text.Len() < maxTail+3*logPiece; i++ {
		fmt.Fprintf(&text, "line %d\n", i)
	}
	content := text.String()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, lines := range []int{-1, 0, 1, 100_000, 1 << 30} {
		var got pieces
		end, err := sendTail(&got, file, lines)
		if err != nil || end != int64(len(content)) {
			t.Fatalf("%d lines: %d, %v", lines, end, err)
		}
		if got.largest > logPiece {
			t.Errorf("%d lines: %d bytes were held", lines, got.largest)
		}
		want := content[len(content)-maxTail:]
		if all := strings.SplitAfter(strings.TrimSuffix(content, "\n"), "\n"); lines >= 0 && lines < len(all) {
			want = strings.Join(all[len(all)-lines:], "") + "\n"
			if lines == 0 {
				want = ""
			}
		}
		if got.String() != want {
			t.Errorf("%d lines: %d bytes, want %d", lines, got.Len(), len(want))
		}
	}
}

// Lines end where they end, also where pieces do.
func TestTailsOfLogs(t *testing.T) {
	long := strings.Repeat("x", logPiece)
	for _, c := range []struct {
		content string
		lines   int
		want    string
	}{
		{"", 3, ""},
		{"\n", 1, "\n"},
		{"a\nb", 1, "b"},
		{"a\nb\n", 1, "b\n"},
		{"a\nb\n", 2, "a\nb\n"},
		{"a\nb\n", 3, "a\nb\n"},
		{"a\n\n", 1, "\n"},
		{"a\n" + long + "\n", 1, long + "\n"},
		{"a\n" + long[1:] + "\nb\n", 2, long[1:] + "\nb\n"},
		{"a\n" + long[2:] + "\n\n", 2, long[2:] + "\n\n"},
		{long + "\n" + long + "\n" + long, 2, long + "\n" + long},
	} {
		start, err := startOfTail(strings.NewReader(c.content), int64(len(c.content)), c.lines, make([]byte, logPiece))
		if err != nil || c.content[start:] != c.want {
			t.Errorf("the last %d of %d bytes begin at %d, %v; want the last %d", c.lines, len(c.content), start, err, len(c.want))
		}
	}
}
