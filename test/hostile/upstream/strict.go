package upstream

import (
	"fmt"
	"strconv"
	"strings"
)

// framing of a body as the head says.
type framing struct {
	length  int
	chunked bool
}

// forbiddenTrailers are those that RFC 9110 section 6.5.1 bars, and those that say who somebody is.
var forbiddenTrailers = map[string]bool{
	"authorization": true, "connection": true, "content-encoding": true, "content-length": true, "content-type": true, "cookie": true,
	"expect": true, "host": true, "keep-alive": true, "proxy-authorization": true, "proxy-connection": true, "set-cookie": true, "te": true,
	"trailer": true, "transfer-encoding": true, "upgrade": true, "x-forwarded-client-cert": true, "x-forwarded-for": true,
	"x-forwarded-host": true, "x-forwarded-proto": true,
}

// hopByHop fields that a proxy must not pass on (RFC 9110 section 7.6.1).
var hopByHop = []string{"connection", "keep-alive", "proxy-connection", "upgrade", "http2-settings"}

// parse reads a head and notes everything that another reader might take otherwise.
func parse(head []byte) (*Request, framing) {
	r := &Request{Raw: string(head)}
	problem := func(format string, args ...any) { r.Problems = append(r.Problems, fmt.Sprintf(format, args...)) }
	text, ok := strings.CutSuffix(r.Raw, "\r\n\r\n")
	if !ok {
		problem("the head does not end in an empty line")
	}
	requestLine, rest, _ := strings.Cut(text, "\r\n")
	r.Line = requestLine
	parts := strings.Split(requestLine, " ")
	switch {
	case len(parts) != 3 || !isToken(parts[0]) || parts[1] == "" || parts[2] != "HTTP/1.1":
		problem("request line %q", requestLine)
	case strings.ContainsFunc(parts[1], func(c rune) bool { return c <= ' ' || c == 0x7f || c == '#' }):
		problem("target %q", parts[1])
	}
	r.Fields = fields(rest, r)
	if n := len(r.Values("host")); n != 1 {
		problem("%d host fields", n)
	}
	for _, name := range hopByHop {
		for _, v := range r.Values(name) {
			// Both are the proxy's own words to the upstream: te needs to be named (RFC 9110 section 10.1.4).
			if name != "connection" || v != "close" && v != "te" {
				problem("hop-by-hop field %s: %s", name, v)
			}
		}
	}
	lengths, codings := r.Values("content-length"), r.Values("transfer-encoding")
	switch {
	case len(lengths)+len(codings) > 1:
		problem("%d content-length and %d transfer-encoding fields", len(lengths), len(codings))
	case len(codings) == 1 && codings[0] != "chunked":
		problem("transfer-encoding %q", codings[0])
	case len(codings) == 1:
		return r, framing{chunked: true}
	case len(lengths) == 1:
		n, ok := length(lengths[0])
		if !ok {
			problem("content-length %q", lengths[0])
			return r, framing{}
		}
		return r, framing{length: n}
	}
	return r, framing{}
}

// length reads a content-length in its only form: no sign, and no leading zeros, which some readers take for octal.
func length(text string) (n int, ok bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0 && text == strconv.Itoa(n)
}

// fields splits field lines and judges each.
func fields(text string, r *Request) []string {
	var out []string
	for l := range strings.SplitSeq(text, "\r\n") {
		if l == "" {
			continue
		}
		name, value, found := strings.Cut(l, ":")
		if !found || !isToken(name) {
			r.Problems = append(r.Problems, fmt.Sprintf("field line %q", l))
		}
		if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			r.Problems = append(r.Problems, fmt.Sprintf("control character in %q", l))
		}
		out = append(out, strings.ToLower(name)+": "+strings.Trim(value, " \t"))
	}
	return out
}

// isToken of RFC 9110 section 5.6.2.
func isToken(s string) bool {
	return s != "" && strings.Trim(s, "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}
