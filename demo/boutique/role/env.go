// Package role is what the eleven roles have in common: where they listen, how
// they call each other, what they log and how they end.
package role

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"heddle.io/heddle/demo/boutique/identity"
)

// Env is all that a role takes from the world around it.
type Env struct {
	// Getenv looks up the environment; "" means absent.
	Getenv func(name string) string
	// Log receives one JSON line per event.
	Log *slog.Logger
	// Now is the clock for what depends on the date, such as a card's expiry.
	Now func() time.Time
	// Random is read for identifiers and choices.
	Random io.Reader
	// Host names the machine or pod in x-boutique-served-by.
	Host string
	// Listening, when not nil, is called once with the address being served.
	Listening func(net.Addr)
}

// Address returns the peer address from the environment, or the fallback.
func (e Env) Address(name, fallback string) string {
	if value := e.Getenv(name); value != "" {
		return value
	}
	return fallback
}

// ServedBy is the role's value of identity.HeaderServedBy. The cluster comes
// from BOUTIQUE_CLUSTER.
func (e Env) ServedBy(name string) string {
	return identity.ServedBy(name, e.Host, e.Getenv("BOUTIQUE_CLUSTER"))
}

// Listen opens the role's TCP port: PORT (0 lets the system choose), else the
// role's own, on every address unless LISTEN_HOST names one.
func (e Env) Listen(port int) (net.Listener, error) {
	if value := e.Getenv("PORT"); value != "" {
		parsed, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("environment variable PORT: %q is not a port number; set it to a number from 0 to 65535", value)
		}
		port = int(parsed)
	}
	address := net.JoinHostPort(e.Getenv("LISTEN_HOST"), strconv.Itoa(port))
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w; choose another port with the environment variable PORT", address, err)
	}
	if e.Listening != nil {
		e.Listening(listener.Addr())
	}
	return listener, nil
}

// Chooser returns a generator for choices that need no secrecy, seeded from
// Random.
func (e Env) Chooser() (*Chooser, error) {
	var seed [32]byte
	if _, err := io.ReadFull(e.Random, seed[:]); err != nil {
		return nil, fmt.Errorf("seed the random choices: %w", err)
	}
	return &Chooser{random: rand.New(rand.NewChaCha8(seed))}, nil
}

// Chooser makes random choices. It is safe for use by several goroutines.
type Chooser struct {
	mu     sync.Mutex
	random *rand.Rand
}

// Below returns a number in [0, n). n must be positive.
func (c *Chooser) Below(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.IntN(n)
}

// Order returns the numbers in [0, n) in random order.
func (c *Chooser) Order(n int) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.Perm(n)
}
