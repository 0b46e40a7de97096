package corpus

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// MaxBytes that one text may stand for.
const MaxBytes = 4 << 20

// Bytes decodes a text: \r \n \t \0 \\ \xHH as in Go, \s for a space, \e for nothing, and \*N(text) for N times text
// (which may itself hold escapes, but no parenthesis).
//
// # Errors
// An escape that is none of these, or too many bytes.
func Bytes(text string) ([]byte, error) {
	var out bytes.Buffer
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			out.WriteByte(text[i])
			continue
		}
		i++
		if i == len(text) {
			return nil, fmt.Errorf("%q ends in a backslash", text)
		}
		switch text[i] {
		case 'r':
			out.WriteByte('\r')
		case 'n':
			out.WriteByte('\n')
		case 't':
			out.WriteByte('\t')
		case '0':
			out.WriteByte(0)
		case 's':
			out.WriteByte(' ')
		case '\\':
			out.WriteByte('\\')
		case 'e':
		case 'x':
			if i+2 >= len(text) {
				return nil, fmt.Errorf(`%q: \x wants two hexadecimal digits`, text)
			}
			b, err := hex.DecodeString(text[i+1 : i+3])
			if err != nil {
				return nil, fmt.Errorf("%q: %w", text, err)
			}
			out.Write(b)
			i += 2
		case '*':
			count, rest, found := strings.Cut(text[i+1:], "(")
			inner, _, closed := strings.Cut(rest, ")")
			n, err := strconv.Atoi(count)
			if !found || !closed || err != nil {
				return nil, fmt.Errorf(`%q: want \*N(text)`, text)
			}
			decoded, err := Bytes(inner)
			if err != nil {
				return nil, err
			}
			if n*len(decoded) > MaxBytes {
				return nil, fmt.Errorf("%q stands for more than %d bytes", text, MaxBytes)
			}
			out.Write(bytes.Repeat(decoded, n))
			i += len(count) + len(inner) + 2
		default:
			return nil, fmt.Errorf(`%q: unknown escape \%c`, text, text[i])
		}
	}
	return out.Bytes(), nil
}
