// Package peer is how what others say of themselves is repeated: members of the mesh, proxies.
package peer

import "unicode"

// Words shortens a peer's words to so many characters, and keeps control characters away from terminals and logs: each is a
// space, but for the ends of lines where there may be several.
func Words(words string, most int, lines bool) string {
	out := make([]rune, 0, min(len(words), most))
	for _, r := range words {
		if len(out) == most {
			return string(out) + "…"
		}
		if !unicode.IsPrint(r) && (r != '\n' || !lines) {
			r = ' '
		}
		out = append(out, r)
	}
	return string(out)
}
