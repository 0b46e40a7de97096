package role

import (
	"fmt"
	"io"
	"strings"
)

// crockford has 32 letters without the ones people mistake for another.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// Number returns an identifier people can read out, such as
// "LS-7K3M-9QZX-42TD": the prefix and the given count of groups of four
// letters, 20 random bits each.
func Number(random io.Reader, prefix string, groups int) (string, error) {
	letters := make([]byte, 4*groups)
	if _, err := io.ReadFull(random, letters); err != nil {
		return "", fmt.Errorf("draw a number %s-…: %w", prefix, err)
	}
	var text strings.Builder
	text.WriteString(prefix)
	for i, letter := range letters {
		if i%4 == 0 {
			text.WriteByte('-')
		}
		text.WriteByte(crockford[letter%32])
	}
	return text.String(), nil
}
