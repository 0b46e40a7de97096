// Package frontend is the role that shows the shop to people. It keeps nothing:
// the cart belongs to cartservice, the shopper's name and currency are cookies.
package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/identity"
	"heddle.io/heddle/demo/boutique/role"
)

// Name and Port are the role's name and the TCP port it listens on by default.
// Its Service maps port 80 to it.
const (
	Name = "frontend"
	Port = 8080
)

const (
	// orderTime is the deadline of an order, which takes ten calls and more.
	orderTime = 15 * time.Second
	// extraTime is the deadline of a call whose answer only decorates the page.
	extraTime = 1500 * time.Millisecond
	// maxForm bounds a posted form in bytes.
	maxForm = 64 << 10
)

// Shop serves the shop's pages.
type Shop struct {
	Ads             boutiquev1.AdServiceClient
	Cart            boutiquev1.CartServiceClient
	Checkout        boutiquev1.CheckoutServiceClient
	Currency        boutiquev1.CurrencyServiceClient
	Catalog         boutiquev1.ProductCatalogServiceClient
	Recommendations boutiquev1.RecommendationServiceClient
	Shipping        boutiquev1.ShippingServiceClient
	// Now dates the card that is filled in.
	Now func() time.Time
	// Random is read for shoppers' identifiers.
	Random io.Reader
	// Log receives failed pages and calls.
	Log *slog.Logger
	// ServedBy is the value of identity.HeaderServedBy.
	ServedBy string
}

// Run serves the role until ctx ends. Its peers are at AD_SERVICE_ADDR,
// CART_SERVICE_ADDR, CHECKOUT_SERVICE_ADDR, CURRENCY_SERVICE_ADDR,
// PRODUCT_CATALOG_SERVICE_ADDR, RECOMMENDATION_SERVICE_ADDR and
// SHIPPING_SERVICE_ADDR.
func Run(ctx context.Context, env role.Env) error {
	dial := role.NewDialer(env, Name)
	defer dial.Close()
	shop := &Shop{
		Ads:             boutiquev1.NewAdServiceClient(dial.To("adservice", "AD_SERVICE_ADDR", "adservice:9555")),
		Cart:            boutiquev1.NewCartServiceClient(dial.To("cartservice", "CART_SERVICE_ADDR", "cartservice:7070")),
		Checkout:        boutiquev1.NewCheckoutServiceClient(dial.To("checkoutservice", "CHECKOUT_SERVICE_ADDR", "checkoutservice:5050")),
		Currency:        boutiquev1.NewCurrencyServiceClient(dial.To("currencyservice", "CURRENCY_SERVICE_ADDR", "currencyservice:7000")),
		Catalog:         boutiquev1.NewProductCatalogServiceClient(dial.To("productcatalogservice", "PRODUCT_CATALOG_SERVICE_ADDR", "productcatalogservice:3550")),
		Recommendations: boutiquev1.NewRecommendationServiceClient(dial.To("recommendationservice", "RECOMMENDATION_SERVICE_ADDR", "recommendationservice:8080")),
		Shipping:        boutiquev1.NewShippingServiceClient(dial.To("shippingservice", "SHIPPING_SERVICE_ADDR", "shippingservice:50051")),
		Now:             env.Now,
		Random:          env.Random,
		Log:             env.Log,
		ServedBy:        env.ServedBy(Name),
	}
	if err := dial.Err(); err != nil {
		return err
	}
	listener, err := env.Listen(Port)
	if err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // a proxy in front may prefer it
	server := &http.Server{
		Handler:           shop.Handler(),
		Protocols:         protocols,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      orderTime + 30*time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(env.Log.Handler(), slog.LevelWarn),
	}
	env.Log.Info("listening", "address", listener.Addr().String())
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("%s: serve on %s: %w", Name, listener.Addr(), err)
	case <-ctx.Done():
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), role.DrainTime)
	defer cancel()
	if err := server.Shutdown(patience); err != nil {
		env.Log.Warn("ended with requests still open", "after", role.DrainTime.String())
		return server.Close()
	}
	env.Log.Info("ended")
	return nil
}

// Handler returns the shop's pages.
func (s *Shop) Handler() http.Handler {
	mux := http.NewServeMux()
	page := func(pattern string, show func(*visit) error) {
		mux.Handle(pattern, s.visitor(show))
	}
	page("GET /{$}", (*visit).home)
	page("GET /product/{id}", (*visit).product)
	page("GET /cart", (*visit).cartPage)
	page("POST /cart", (*visit).addToCart)
	page("POST /cart/empty", (*visit).emptyCart)
	page("GET /checkout", (*visit).checkoutPage)
	page("POST /checkout", (*visit).placeOrder)
	page("POST /cart/checkout", (*visit).placeOrder) // the path load tests of Online Boutique use
	page("POST /setCurrency", (*visit).setCurrency)
	page("/", func(*visit) error { return refuse(http.StatusNotFound, "There is no such page in this shop.") })
	mux.Handle("GET /static/", staticFiles())
	healthy := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n") // the prober may hang up
	}
	mux.HandleFunc("GET /healthz", healthy)
	mux.HandleFunc("GET /_healthz", healthy)
	return s.surround(mux)
}

// surround does what every answer needs: the echo of the caller's identity,
// headers that keep strangers' content out, a bound on what is read, and an
// answer instead of a broken connection after a panic.
func (s *Shop) surround(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set(identity.HeaderClient, identity.Echo(r.Header.Values(identity.HeaderForwarded)))
		header.Set(identity.HeaderServedBy, s.ServedBy)
		header.Set("Content-Security-Policy", "default-src 'none'; img-src 'self'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "same-origin")
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		defer func() {
			if cause := recover(); cause != nil {
				if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(cause)
				}
				s.Log.Error("page panicked", "path", r.URL.Path, "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
				http.Error(w, "Something broke on our side; the shop's log has the cause.", http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// refusal is a visitor's mistake: an HTTP status below 500 and what to do.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string { return r.message }

func refuse(status int, format string, values ...any) error {
	return &refusal{status: status, message: fmt.Sprintf(format, values...)}
}

// failure is what an error page says.
type failure struct {
	Status  int
	Heading string
	Message string
	// Code is the gRPC status of the call that failed, "" when none did.
	Code string
}

// explain maps an error to the page that shows it.
func explain(err error) failure {
	var mistake *refusal
	if errors.As(err, &mistake) {
		heading := "That did not work"
		if mistake.status == http.StatusNotFound {
			heading = "Not on our shelves"
		}
		return failure{Status: mistake.status, Heading: heading, Message: mistake.message}
	}
	page := failure{Status: http.StatusBadGateway, Heading: "The shop is catching its breath", Message: status.Convert(err).Message(), Code: status.Code(err).String()}
	switch status.Code(err) {
	case codes.Unavailable:
		page.Status = http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		page.Status = http.StatusGatewayTimeout
	}
	return page
}
