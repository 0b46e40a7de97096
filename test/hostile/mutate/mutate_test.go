package mutate

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestBytes: the same seed gives the same bytes, the input stays as it is, and nearly all outputs differ from it.
func TestBytes(t *testing.T) {
	in := []byte("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	before := bytes.Clone(in)
	a, b := rand.New(rand.NewPCG(1, 2)), rand.New(rand.NewPCG(1, 2))
	same := 0
	for range 1000 {
		one, two := Bytes(a, in), Bytes(b, in)
		if !bytes.Equal(one, two) {
			t.Fatal("one seed, two outputs")
		}
		if bytes.Equal(one, in) {
			same++
		}
		if len(one) > 2*len(in)+4*40 {
			t.Fatalf("%d bytes", len(one))
		}
	}
	if !bytes.Equal(in, before) || same > 100 {
		t.Errorf("%d of 1000 are the same", same)
	}
	for range 100 {
		// Nothing to change must not be a panic.
		_ = Bytes(a, nil)
	}
}
