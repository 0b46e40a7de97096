package flood

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"heddle.io/heddle/test/hostile/frame"
)

const (
	// beat and batch bound what one attack sends to 4 MiB a second in all, about a quarter of a million PING frames: more
	// than a connection of an honest client ever has, and little enough to leave the attacker's processor time for the
	// clients whose delays are measured.
	beat  = 4 * time.Millisecond
	batch = 16 << 10
	// again is how long an attacker waits before it comes back after its connection was ended.
	again = 20 * time.Millisecond
)

// Attack is one kind of flood.
type Attack struct {
	// Name in the table.
	Name string
	// Connections at a time.
	Connections int
	// Setup and Repeat are lines of package frame: what begins a connection, and what then comes without end.
	Setup, Repeat []string
	// Run is what happens on a connection instead of Setup and Repeat; it returns when the connection or the context
	// ends.
	Run func(ctx context.Context, c *Connection) error
	// Unread leaves alone what the proxy sends.
	Unread bool
	// Listener that the attackers go to, "plain" unless set; the other clients' is always that.
	Listener string
	// TLS has the attackers do a handshake first.
	TLS bool
}

// Sent is what an attack did.
type Sent struct {
	// Units are frames, or requests, or whatever the attack counts.
	Units, Bytes, Dials, Ended atomic.Int64
	// Oldest is the longest life of a connection, in nanoseconds.
	Oldest atomic.Int64
	// Most units that one connection could send.
	Most atomic.Int64
}

// Connection of an attacker.
type Connection struct {
	net.Conn
	// Encoder of its frames.
	Encoder *frame.Encoder
	// Over is closed when the proxy has ended the connection.
	Over  chan struct{}
	sent  *Sent
	units int64
}

// Write counts.
func (c *Connection) Write(b []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(patience))
	n, err := c.Conn.Write(b)
	c.sent.Bytes.Add(int64(n))
	return n, err
}

// Count units that were sent.
func (c *Connection) Count(n int64) {
	c.units += n
	c.sent.Units.Add(n)
	for most := c.sent.Most.Load(); c.units > most && !c.sent.Most.CompareAndSwap(most, c.units); {
		most = c.sent.Most.Load()
	}
}

// Frames encodes lines.
func (c *Connection) Frames(lines ...string) ([]byte, error) {
	var out []byte
	for _, l := range lines {
		verb, text, _ := strings.Cut(l, " ")
		b, err := c.Encoder.Frame(verb, text)
		if err != nil {
			return nil, err
		}
		out = append(out, b...)
	}
	return out, nil
}

// Preface begins HTTP/2.
func (c *Connection) Preface(settings string) error {
	b, err := c.Frames("SETTINGS 0" + settings)
	if err == nil {
		_, err = c.Write(append([]byte(frame.Preface), b...))
	}
	return err
}

// Pause waits for the next beat; an error says that it is over.
func (c *Connection) Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.Over:
		return io.EOF
	case <-time.After(d):
		return nil
	}
}

// Start attacks until the context ends; done is closed when the last connection is closed.
func (a Attack) Start(ctx context.Context, address string) (sent *Sent, done chan struct{}) {
	sent, done = &Sent{}, make(chan struct{})
	var group sync.WaitGroup
	for range a.Connections {
		group.Go(func() { a.keepOn(ctx, address, sent) })
	}
	go func() {
		group.Wait()
		close(done)
	}()
	return sent, done
}

// keepOn comes back whenever the proxy ends the connection.
func (a Attack) keepOn(ctx context.Context, address string, sent *Sent) {
	for ctx.Err() == nil {
		began := time.Now()
		if err := a.once(ctx, address, sent); err != nil && ctx.Err() == nil {
			sent.Ended.Add(1)
		}
		age := int64(time.Since(began))
		for oldest := sent.Oldest.Load(); age > oldest && !sent.Oldest.CompareAndSwap(oldest, age); {
			oldest = sent.Oldest.Load()
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

func (a Attack) once(ctx context.Context, address string, sent *Sent) error {
	sent.Dials.Add(1)
	conn, err := a.dial(ctx, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	// What ends the attack also ends a blocked write.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	c := &Connection{Conn: conn, Encoder: frame.NewEncoder(), Over: make(chan struct{}), sent: sent}
	if !a.Unread {
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			close(c.Over)
		}()
	}
	if a.Run != nil {
		return a.Run(ctx, c)
	}
	return a.repeat(ctx, c)
}

func (a Attack) dial(ctx context.Context, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: patience}
	if !a.TLS {
		return dialer.DialContext(ctx, "tcp", address)
	}
	// The certificate is the test's own, made a moment ago.
	secure := tls.Dialer{NetDialer: dialer, Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}} //nolint:gosec // see above
	return secure.DialContext(ctx, "tcp", address)
}

// repeat writes the same frames again and again, in batches.
func (a Attack) repeat(ctx context.Context, c *Connection) error {
	if err := c.Preface(""); err != nil {
		return err
	}
	first, err := c.Frames(a.Setup...)
	if err != nil {
		return err
	}
	if _, err := c.Write(first); err != nil {
		return err
	}
	one, err := c.Frames(a.Repeat...)
	if err != nil {
		return err
	}
	if len(one) == 0 {
		return fmt.Errorf("%s: nothing to repeat", a.Name)
	}
	times := max(1, batch/a.Connections/len(one))
	all := make([]byte, 0, times*len(one))
	for range times {
		all = append(all, one...)
	}
	for {
		if _, err := c.Write(all); err != nil {
			return err
		}
		c.Count(int64(times * len(a.Repeat)))
		if err := c.Pause(ctx, beat); err != nil {
			return err
		}
	}
}
