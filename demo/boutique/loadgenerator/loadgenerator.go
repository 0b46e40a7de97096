// Package loadgenerator is the role that visits the shop as people do: it looks
// around, fills a cart, buys, and counts how that went.
package loadgenerator

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strconv"
	"strings"
	"time"

	"heddle.io/heddle/demo/boutique/role"
)

// Name is the role's name. It listens nowhere.
const Name = "loadgenerator"

const (
	defaultRate = 2   // requests per second
	maxRate     = 200 // a demonstration, not a benchmark
	// requestTime is longer than the frontend's own deadline of an order, so
	// that its answer is seen.
	requestTime = 20 * time.Second
	// reportEvery is how many requests lie between two lines of counts.
	reportEvery = 20
	// maxPage bounds how much of a page is read, in bytes.
	maxPage = 4 << 20
)

// Counts is what happened so far.
type Counts struct {
	Requests, Orders int
	// Refused counts answers from 400 to 499, Failed those from 500 and requests
	// without an answer.
	Refused, Failed int
}

// Generator visits one shop.
type Generator struct {
	// Base is the shop's address, such as "http://frontend:80".
	Base string
	// Pace permits one request per value.
	Pace <-chan time.Time
	// Chooser decides what is looked at and bought.
	Chooser *role.Chooser
	// Log receives counts and failures.
	Log *slog.Logger
	// Transport makes the requests.
	Transport http.RoundTripper

	counts Counts
}

// Run visits the shop at FRONTEND_ADDR (host:port) with RATE requests per
// second until ctx ends.
func Run(ctx context.Context, env role.Env) error {
	rate, err := parseRate(env.Getenv("RATE"))
	if err != nil {
		return fmt.Errorf("%s: environment variable RATE: %w", Name, err)
	}
	address := env.Address("FRONTEND_ADDR", "frontend:80")
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("%s: environment variable FRONTEND_ADDR: %q is not host:port: %w", Name, address, err)
	}
	chooser, err := env.Chooser()
	if err != nil {
		return err
	}
	pace := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer pace.Stop()
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     30 * time.Second,
	}
	defer transport.CloseIdleConnections()
	generator := &Generator{Base: "http://" + address, Pace: pace.C, Chooser: chooser, Log: env.Log, Transport: transport}
	env.Log.Info("visiting", "shop", generator.Base, "rate", rate)
	generator.Visit(ctx)
	return nil
}

func parseRate(text string) (float64, error) {
	if text == "" {
		return defaultRate, nil
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !(rate >= 0.01 && rate <= maxRate) {
		return 0, fmt.Errorf("%q is not a number of requests per second between 0.01 and %d", text, maxRate)
	}
	return rate, nil
}

// Visit sends one shopper after the other until ctx ends, and returns what
// happened.
func (g *Generator) Visit(ctx context.Context) Counts {
	for g.shopper(ctx) {
	}
	g.report()
	return g.counts
}

// step is one request; a form makes it a POST.
type step struct {
	path string
	form url.Values
}

// walk plans one shopper's visit: three in four buy.
func (g *Generator) walk(products []string) []step {
	choose := func() string { return products[g.Chooser.Below(len(products))] }
	currencies := []string{"USD", "EUR", "GBP", "JPY", "CHF"}
	steps := []step{
		{"/setCurrency", url.Values{"currency_code": {currencies[g.Chooser.Below(len(currencies))]}, "return_to": {"/"}}},
		{"/product/" + choose(), nil},
	}
	for range 1 + g.Chooser.Below(3) {
		product := choose()
		steps = append(steps, step{"/product/" + product, nil},
			step{"/cart", url.Values{"product_id": {product}, "quantity": {strconv.Itoa(1 + g.Chooser.Below(5))}}})
	}
	if g.Chooser.Below(4) == 0 {
		return append(steps, step{"/cart/empty", url.Values{}})
	}
	return append(steps, step{"/checkout", nil}, step{"/checkout", url.Values{
		"email": {"load@example.com"}, "street_address": {"4 Treadle Lane"}, "zip_code": {"BD1 1AA"}, "city": {"Bradford"},
		"state": {"West Yorkshire"}, "country": {"United Kingdom"}, "credit_card_number": {"4242 4242 4242 4242"},
		// The last year a card can state, so that this one never expires.
		"credit_card_expiration_month": {"12"}, "credit_card_expiration_year": {"9999"}, "credit_card_cvv": {"123"},
	}})
}

// shopper walks through the shop once; false when ctx has ended.
func (g *Generator) shopper(ctx context.Context) bool {
	jar, err := cookiejar.New(nil)
	if err != nil { // cannot happen without options
		g.Log.Error("no cookies", "cause", err.Error())
		return false
	}
	client := &http.Client{Transport: g.Transport, Jar: jar, Timeout: requestTime}
	page, alive := g.request(ctx, client, step{"/", nil})
	products := productsOn(page)
	if !alive || len(products) == 0 {
		return alive
	}
	for _, step := range g.walk(products) {
		page, alive := g.request(ctx, client, step)
		if !alive {
			return false
		}
		if page == "" {
			return true // failed and counted; this shopper leaves
		}
		if strings.Contains(page, `id="order-number"`) {
			g.counts.Orders++
		}
	}
	return true
}

// productsOn returns the identifiers of the products a page shows.
func productsOn(page string) []string {
	var found []string
	for _, part := range strings.Split(page, `data-product="`)[1:] {
		if id, _, closed := strings.Cut(part, `"`); closed && id != "" && url.PathEscape(id) == id {
			found = append(found, id)
		}
	}
	return found
}

// request waits for its turn and makes one request. The page is empty when it
// was not answered well; alive is false when ctx has ended.
func (g *Generator) request(ctx context.Context, client *http.Client, s step) (page string, alive bool) {
	select {
	case <-ctx.Done():
		return "", false
	case <-g.Pace:
	}
	method, body := http.MethodGet, ""
	if s.form != nil {
		method, body = http.MethodPost, s.form.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, g.Base+s.path, strings.NewReader(body))
	if err != nil {
		g.Log.Error("request not made", "path", s.path, "cause", err.Error())
		return "", false
	}
	if s.form != nil {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	response, err := client.Do(request)
	if ctx.Err() != nil {
		if err == nil {
			_ = response.Body.Close()
		}
		return "", false
	}
	g.counts.Requests++
	defer func() {
		if g.counts.Requests%reportEvery == 0 {
			g.report()
		}
	}()
	if err != nil {
		g.counts.Failed++
		g.Log.Warn("no answer", "method", method, "path", s.path, "cause", err.Error())
		return "", true
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxPage))
	switch {
	case err != nil || response.StatusCode >= 500:
		g.counts.Failed++
	case response.StatusCode >= 400:
		g.counts.Refused++
	default:
		return string(content), true
	}
	g.Log.Warn("not answered well", "method", method, "path", s.path, "status", response.StatusCode)
	return "", true
}

func (g *Generator) report() {
	g.Log.Info("counts", "requests", g.counts.Requests, "orders", g.counts.Orders, "refused", g.counts.Refused, "failed", g.counts.Failed)
}
