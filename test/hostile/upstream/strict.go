package upstream

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// framing of a body as the head says.
type framing struct {
	length  int
	chunked bool
}

// What a request's trailers may be: the lists of proxy/crates/http/src/head/trailers.rs. Binary metadata of gRPC (-bin) may
// be anything but what steers.
var (
	allowedTrailers = []string{
		"b3", "baggage", "checksum", "content-digest", "content-md5", "digest", "grpc-message", "grpc-status", "repr-digest",
		"server-timing", "signature", "signature-input", "traceparent", "tracestate", "uber-trace-id", "x-amz-trailer-signature",
		"x-checksum", "x-cloud-trace-context", "x-goog-hash",
	}
	allowedTrailerPrefixes  = []string{"x-amz-checksum-", "x-b3-", "x-checksum-"}
	steeringTrailerPrefixes = []string{"content-", "x-envoy-", "x-forwarded-"}
)

func mayTrail(name string) bool {
	begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	switch {
	case slices.Contains(allowedTrailers, name):
		return true
	case strings.Contains(name, "_"):
		return false
	}
	return slices.ContainsFunc(allowedTrailerPrefixes, begins) ||
		strings.HasSuffix(name, "-bin") && !slices.ContainsFunc(steeringTrailerPrefixes, begins)
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
