// Package mutate changes inputs at random: what the corpus does not think of.
package mutate

import (
	"bytes"
	"math/rand/v2"
	"slices"
)

// words that mean something to HTTP.
var words = []string{"\r\n", "\n", "\r", "\r\n\r\n", " ", "\t", "\x00", ":", ",", ";", "%2e", "%2f", "..", "/", "\\", "0", "chunked", "Content-Length: 5\r\n",
	"Transfer-Encoding: chunked\r\n", "Host: h\r\n", "Connection: ", "HTTP/1.1", "GET ", "POST ", "X-Role: admin\r\n", "/admin", "\x00\x00\x00\x01\x05", "\xff"}

// Bytes returns a changed copy with one to four changes; never larger than twice its input and a little.
func Bytes(r *rand.Rand, in []byte) []byte {
	out := bytes.Clone(in)
	for range 1 + r.IntN(4) {
		at := r.IntN(len(out) + 1)
		switch r.IntN(6) {
		case 0: // another bit
			if at < len(out) {
				out[at] ^= 1 << r.IntN(8)
			}
		case 1: // another byte
			if at < len(out) {
				out[at] = byte(r.IntN(256))
			}
		case 2: // a word more
			out = slices.Insert(out, at, []byte(words[r.IntN(len(words))])...)
		case 3: // a piece less
			end := min(len(out), at+1+r.IntN(8))
			out = slices.Delete(out, at, end)
		case 4: // a piece twice
			end := min(len(out), at+1+r.IntN(32))
			out = slices.Insert(out, at, bytes.Clone(out[at:end])...)
		case 5: // the letters' other case
			for i := at; i < min(len(out), at+4); i++ {
				if c := out[i] | 0x20; c >= 'a' && c <= 'z' {
					out[i] ^= 0x20
				}
			}
		}
	}
	return out
}
