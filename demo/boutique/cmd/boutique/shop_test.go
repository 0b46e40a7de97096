package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"heddle.io/heddle/demo/boutique/identity"
	"heddle.io/heddle/demo/boutique/redistest"
	"heddle.io/heddle/demo/boutique/role"
)

// variables are the environment variables that hold the roles' addresses.
var variables = map[string]string{
	"adservice": "AD_SERVICE_ADDR", "cartservice": "CART_SERVICE_ADDR", "checkoutservice": "CHECKOUT_SERVICE_ADDR",
	"currencyservice": "CURRENCY_SERVICE_ADDR", "emailservice": "EMAIL_SERVICE_ADDR", "frontend": "FRONTEND_ADDR",
	"paymentservice": "PAYMENT_SERVICE_ADDR", "productcatalogservice": "PRODUCT_CATALOG_SERVICE_ADDR",
	"recommendationservice": "RECOMMENDATION_SERVICE_ADDR", "shippingservice": "SHIPPING_SERVICE_ADDR",
}

// logbook is a log that can be read while it is written.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// shop is all roles running in this process, on loopback ports.
type shop struct {
	t       *testing.T
	environ map[string]string
	logs    map[string]*logbook
	stops   map[string]func()
}

// open starts every role but the load generator.
func open(t *testing.T) *shop {
	s := &shop{t: t, logs: map[string]*logbook{}, stops: map[string]func(){},
		environ: map[string]string{"REDIS_ADDR": redistest.Start(t), "LISTEN_HOST": "127.0.0.1", "PORT": "0", "BOUTIQUE_CLUSTER": "test"}}
	for _, p := range parts {
		if p.port != 0 {
			s.start(p)
		}
	}
	return s
}

func (s *shop) start(p part) {
	environ := map[string]string{}
	for name, value := range s.environ {
		environ[name] = value
	}
	s.logs[p.name] = &logbook{}
	listening := make(chan net.Addr, 1)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	env := role.Env{
		Getenv: func(name string) string { return environ[name] },
		Log:    slog.New(slog.NewJSONHandler(s.logs[p.name], nil)),
		Now:    func() time.Time { return time.Date(2030, 5, 1, 12, 0, 0, 0, time.UTC) },
		Random: rand.Reader, Host: "host", Listening: func(address net.Addr) { listening <- address },
	}
	go func() { ended <- p.run(ctx, env) }()
	select {
	case address := <-listening:
		s.environ[variables[p.name]] = address.String()
	case err := <-ended:
		s.t.Fatalf("%s ended: %v", p.name, err)
	}
	var once sync.Once
	s.stops[p.name] = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				s.t.Errorf("%s: %v", p.name, err)
			}
		})
	}
	s.t.Cleanup(s.stops[p.name])
}

// visitor is a browser without pictures.
type visitor struct {
	t      *testing.T
	client *http.Client
	base   string
	header http.Header
}

func (s *shop) visitor() *visitor {
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	transport := &http.Transport{}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &visitor{t: s.t, client: &http.Client{Jar: jar, Transport: transport, Timeout: time.Minute}, base: "http://" + s.environ["FRONTEND_ADDR"], header: http.Header{}}
}

// visit gets a path, or posts a form given as name, value, name, value, and
// expects the status.
func (v *visitor) visit(status int, path string, form ...string) string {
	v.t.Helper()
	method, values := http.MethodGet, url.Values{}
	if len(form) > 0 {
		method = http.MethodPost
	}
	for i := 0; i+1 < len(form); i += 2 {
		values.Set(form[i], form[i+1])
	}
	request, err := http.NewRequest(method, v.base+path, strings.NewReader(values.Encode()))
	if err != nil {
		v.t.Fatal(err)
	}
	for name, value := range v.header {
		request.Header[name] = value
	}
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	response, err := v.client.Do(request)
	if err != nil {
		v.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	if response.StatusCode != status {
		v.t.Fatalf("%s %s: status %d, want %d: %s", method, path, response.StatusCode, status, content)
	}
	if response.Header.Get(identity.HeaderClient) == "" || response.Header.Get(identity.HeaderServedBy) != "frontend/host/test" {
		v.t.Errorf("%s %s: echo headers are %v", method, path, response.Header)
	}
	return string(content)
}

// textOf returns what stands in the element with the id.
func (v *visitor) textOf(page, id string) string {
	v.t.Helper()
	_, rest, found := strings.Cut(page, `id="`+id+`"`)
	_, rest, opened := strings.Cut(rest, ">")
	text, _, closed := strings.Cut(rest, "<")
	if !found || !opened || !closed {
		v.t.Fatalf("the page has no element %q: %s", id, page)
	}
	return text
}

// expect fails the test unless the page holds every part.
func (v *visitor) expect(page string, parts ...string) {
	v.t.Helper()
	for _, part := range parts {
		if !strings.Contains(page, part) {
			v.t.Errorf("the page lacks %q: %s", part, page)
		}
	}
}

// goodOrder is a filled-in checkout form; changes replaces values by name.
func goodOrder(changes ...string) []string {
	return append([]string{"email", "anna@example.com", "street_address", "1 Weir Lane", "zip_code", "HX1", "city", "Halifax", "state", "Yorks",
		"country", "UK", "credit_card_number", "4242424242424242", "credit_card_expiration_month", "5",
		"credit_card_expiration_year", "2030", "credit_card_cvv", "123"}, changes...)
}
