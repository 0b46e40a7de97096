package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"
)

// plaintextTime bounds a connection in plaintext that is made for a check.
const plaintextTime = 3 * time.Second

// refusals is the metric of connections that no filter chain took, Envoy's: under STRICT, those without TLS.
const refusals = "envoy_listener_no_filter_chain_match"

// verdict on a connection in plaintext.
type verdict int

const (
	// unclear: nothing came that tells.
	unclear verdict = iota
	refused
	accepted
)

// checkPlaintext calls the application from outside the mesh, without a certificate. It is refused when the proxy ends
// the connection and counts it as one that it does not take. Everything else that is no answer tells nothing.
func (r *replica) checkPlaintext(ctx context.Context, port int32) Check {
	ctx, cancel := context.WithTimeout(ctx, plaintextTime+countTime)
	defer cancel()
	target := netip.AddrPortFrom(r.address, uint16(port)).String()
	c := Check{Subject: r.spec.key(), Name: "plaintext", How: Tried, Port: port, Remedy: "set a PeerAuthentication with mode STRICT, or leave it if clients outside of the mesh need it"}
	before, countErr := r.refusals(ctx)
	said, text := unclear, ""
	connection, err := (&net.Dialer{Timeout: plaintextTime}).DialContext(ctx, "tcp", target)
	if err != nil {
		text = "not connected: " + err.Error()
	} else {
		said, text = judge(connection, time.Now().Add(plaintextTime))
		connection.Close()
	}
	if said == refused {
		counted := false
		if countErr == nil {
			counted, countErr = moreThan(ctx, before, r.refusals)
		}
		switch {
		case counted:
			text += ", and the proxy counted it as refused"
		case countErr != nil:
			said, text = unclear, text+", but whether by the proxy cannot be read: "+countErr.Error()
		default:
			said, text = unclear, text+", but the proxy did not count it as refused: the application may have ended it"
		}
	}
	c.OK, c.Unknown = said == refused, said == unclear
	c.Detail = fmt.Sprintf("GET without TLS at %s: %s", target, text)
	switch said {
	case refused:
		c.Remedy = ""
	case unclear:
		c.Remedy = fmt.Sprintf("`heddle logs -n %s %s --proxy` shows what became of the connection", r.spec.Namespace, r.spec.Workload)
	}
	return c
}

// judge sends a request in plaintext and says what became of it.
func judge(connection net.Conn, deadline time.Time) (verdict, string) {
	if err := connection.SetDeadline(deadline); err != nil {
		return unclear, err.Error()
	}
	if _, err := io.WriteString(connection, "GET /heddle-check HTTP/1.1\r\nHost: heddle-check\r\nUser-Agent: heddle-check\r\nConnection: close\r\n\r\n"); err != nil {
		return unclear, "it could not be sent: " + err.Error()
	}
	reply := make([]byte, 64)
	n, err := connection.Read(reply)
	switch {
	case n >= 2 && reply[0] == 0x15 && reply[1] == 3:
		// A TLS alert (RFC 8446, section 5.1) is how a TLS server answers what is none.
		return refused, "answered with a TLS alert"
	case n > 0:
		first, _, _ := strings.Cut(string(reply[:n]), "\r\n")
		return accepted, fmt.Sprintf("answered: %q", first)
	case errors.Is(err, io.EOF):
		return refused, "the connection was closed"
	case errors.Is(err, syscall.ECONNRESET):
		return refused, "the connection was reset"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return unclear, "no answer, and the connection stays open"
	}
	return unclear, fmt.Sprint(err)
}

// refusals counts the connections that the proxy did not take so far.
func (r *replica) refusals(ctx context.Context) (float64, error) {
	metrics, err := r.metrics(ctx, refusals)
	total := 0.0
	for _, metric := range metrics {
		total += metric.GetCounter().GetValue()
	}
	return total, err
}

// moreThan waits for a while until a count is above what it was.
func moreThan(ctx context.Context, before float64, count func(context.Context) (float64, error)) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	for pause := countPoll; ; pause = min(2*pause, longestCountPoll) {
		now, err := count(ctx)
		if ctx.Err() != nil {
			return false, nil
		}
		if err != nil || now > before {
			return err == nil, err
		}
		if !wait(ctx, pause) {
			return false, nil
		}
	}
}
