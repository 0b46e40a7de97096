package tour

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// requestTime is the deadline of one request: an order has fifteen seconds.
	requestTime = 30 * time.Second
	// maxPage bounds a page in bytes.
	maxPage = 4 << 20
	// products is how many different products are bought.
	products = 2
)

// Receipt is what a purchase came to.
type Receipt struct {
	// Number of the order, and what it cost.
	Number, Total string
	// Products that were bought.
	Products []string
	// Calls behind the page that confirmed the order.
	Calls []Call
}

// shopper walks through the shop like a browser: with cookies, following
// redirections, and filling in the forms that the pages hold. It repeats
// nothing.
type shopper struct {
	client *http.Client
	base   *url.URL
}

// Buy buys two products at the shop's address.
func Buy(ctx context.Context, address string) (Receipt, error) {
	base, err := url.Parse(address)
	if err != nil {
		return Receipt{}, fmt.Errorf("the shop's address: %w", err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return Receipt{}, fmt.Errorf("make a cookie jar: %w", err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	s := shopper{client: &http.Client{Jar: jar, Transport: transport, Timeout: requestTime}, base: base}
	receipt, err := s.buy(ctx)
	if err != nil {
		return receipt, fmt.Errorf("buying at %s: %w", address, err)
	}
	return receipt, nil
}

func (s shopper) buy(ctx context.Context) (Receipt, error) {
	var receipt Receipt
	home, err := s.get(ctx, "/")
	if err != nil {
		return receipt, err
	}
	offered := home.products()
	if len(offered) < products {
		return receipt, fmt.Errorf("the shop offers %d products", len(offered))
	}
	for i, product := range offered[:products] {
		shown, err := s.get(ctx, "/product/"+url.PathEscape(product))
		if err != nil {
			return receipt, err
		}
		order, err := shown.form("/cart")
		if err != nil {
			return receipt, err
		}
		order.fields["quantity"] = []string{strconv.Itoa(i + 1)}
		cart, err := s.post(ctx, order)
		if err != nil {
			return receipt, err
		}
		if cart.textOf("cart-total") == "" {
			return receipt, fmt.Errorf("the cart is empty after %s was put into it", product)
		}
		receipt.Products = append(receipt.Products, product)
	}
	checkout, err := s.get(ctx, "/checkout")
	if err != nil {
		return receipt, err
	}
	order, err := checkout.form("/checkout")
	if err != nil {
		return receipt, err
	}
	done, err := s.post(ctx, order)
	if err != nil {
		return receipt, err
	}
	receipt.Number, receipt.Total, receipt.Calls = done.textOf("order-number"), done.textOf("order-total"), done.calls()
	if receipt.Number == "" {
		return receipt, fmt.Errorf("the page %q names no order", done.heading())
	}
	return receipt, nil
}

func (s shopper) get(ctx context.Context, path string) (page, error) {
	return s.visit(ctx, http.MethodGet, path, nil)
}

func (s shopper) post(ctx context.Context, f form) (page, error) {
	return s.visit(ctx, http.MethodPost, f.action, strings.NewReader(url.Values(f.fields).Encode()))
}

func (s shopper) visit(ctx context.Context, method, path string, body io.Reader) (page, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.base.JoinPath(path).String(), body)
	if err != nil {
		return page{}, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	response, err := s.client.Do(request)
	if err != nil {
		return page{}, err // names method and address
	}
	defer func() { _ = response.Body.Close() }() // read or given up
	shown, err := parsePage(io.LimitReader(response.Body, maxPage))
	if err != nil {
		return page{}, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if response.StatusCode != http.StatusOK {
		return page{}, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, shown.heading())
	}
	return shown, nil
}

// Crossings counts the calls that went from one cluster to another.
func (r Receipt) Crossings() int {
	count := 0
	for _, c := range r.Calls {
		if c.ClientCluster != c.ServerCluster {
			count++
		}
	}
	return count
}

// Check says what does not hold: every call behind the order must have
// succeeded between two proven identities, each of the clusters must have
// answered, and calls must have crossed between any two in both directions.
func (r Receipt) Check(clusters ...string) error {
	var wrong []error
	crossed := map[[2]string]bool{}
	for _, c := range r.Calls {
		name := fmt.Sprintf("%s → %s %s", c.Caller, c.Service, c.Method)
		if c.Status != "OK" {
			wrong = append(wrong, fmt.Errorf("%s ended with %s", name, c.Status))
		}
		for _, identity := range []string{c.Client, c.Server} {
			if !strings.HasPrefix(identity, "spiffe://") {
				wrong = append(wrong, fmt.Errorf("%s was not mutual TLS: %q is no identity", name, identity))
			}
		}
		for _, cluster := range []string{c.ClientCluster, c.ServerCluster} {
			if !slices.Contains(clusters, cluster) {
				wrong = append(wrong, fmt.Errorf("%s: cluster %q is none of %v", name, cluster, clusters))
			}
		}
		crossed[[2]string{c.ClientCluster, c.ServerCluster}] = true
	}
	for _, from := range clusters {
		for _, to := range clusters {
			if from != to && !crossed[[2]string{from, to}] {
				wrong = append(wrong, fmt.Errorf("no call went from %s to %s", from, to))
			}
		}
	}
	return errors.Join(wrong...)
}
