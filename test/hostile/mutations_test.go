//go:build hostile

package hostile

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"heddle.io/heddle/test/hostile/corpus"
	"heddle.io/heddle/test/hostile/frame"
	"heddle.io/heddle/test/hostile/mutate"
)

const (
	// mutations of an ordinary run; a long one goes on for mutating.
	mutations = 10_000
	mutating  = 10 * time.Minute
	// quiet on a connection for so long means that no more is to come.
	quiet = 20 * time.Millisecond
)

// TestMutations sends the corpus with random changes. Nobody knows what must be answered, but what never may reach an
// upstream, and the honest request behind each, hold always.
func TestMutations(t *testing.T) {
	counted(t)
	var cases []corpus.Case
	for _, folder := range []string{"http1", "http2"} {
		more, err := corpus.Folder(folder)
		if err != nil {
			t.Fatal(err)
		}
		cases = append(cases, more...)
	}
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	all := startLanes(t, "heddle")
	deadline := time.Now().Add(mutating)
	for round := 0; ; round++ {
		batch := make([]corpus.Case, 0, mutations)
		for range mutations {
			original := cases[random.IntN(len(cases))]
			input, err := bytesOf(original)
			if err != nil {
				t.Fatalf("%s: %v", original.Place, err)
			}
			// A few megabytes of the same letter find nothing new.
			if len(input) > 20_000 {
				input = input[:20_000]
			}
			changed := mutate.Bytes(random, input)
			name := fmt.Sprintf("seed %d round %d input %d", seed, round, len(batch))
			batch = append(batch, corpus.Case{Name: name, Place: original.Place, On: original.On, Steps: []corpus.Step{{Verb: "bytes", Text: string(changed)}}})
		}
		runLanes(t, all, batch, mutated)
		if !long || time.Now().After(deadline) || t.Failed() {
			return
		}
	}
}

// bytesOf are all bytes that a case sends.
func bytesOf(c corpus.Case) ([]byte, error) {
	var out []byte
	encoder := frame.NewEncoder()
	for i, s := range c.Steps {
		if i == 0 && frame.Known(s.Verb) {
			settings, err := encoder.Frame("SETTINGS", "0")
			if err != nil {
				return nil, err
			}
			out = append([]byte(frame.Preface), settings...)
		}
		var b []byte
		var err error
		switch {
		case s.Verb == "send":
			b, err = corpus.Bytes(s.Text)
		case frame.Known(s.Verb):
			b, err = encoder.Frame(s.Verb, s.Text)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, b...)
	}
	return out, nil
}

func mutated(t *testing.T, l *lane, c corpus.Case) {
	address, input := l.at(t, c), []byte(c.Steps[0].Text)
	if err := push(address, input); err != nil {
		t.Errorf("%s: %v after %.2000q", c.Place, err, input)
	}
	requests, err := l.settle(address)
	if err != nil {
		t.Errorf("%s: %v after %.2000q", c.Place, err, input)
	}
	for _, problem := range violations(c.On, requests) {
		t.Errorf("%s: %s after %.2000q%s", c.Place, problem, input, describe(requests))
	}
}

// push sends bytes and reads what comes until nothing does.
func push(address string, input []byte) error {
	conn, err := net.DialTimeout("tcp", address, canaryBound)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetWriteDeadline(time.Now().Add(canaryBound))
	// It may be refused half-way.
	_, _ = conn.Write(input)
	buffer := make([]byte, 16<<10)
	for read := 0; read < maxAnswer; {
		_ = conn.SetReadDeadline(time.Now().Add(quiet))
		n, err := conn.Read(buffer)
		read += n
		if err != nil {
			// Quiet, the end, or a reset, which is a refusal too.
			return nil
		}
	}
	return fmt.Errorf("more than %d bytes of answer", maxAnswer)
}
