package frontend

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/identity"
	"heddle.io/heddle/demo/boutique/role"
)

const (
	sessionCookie   = "shop_session"
	currencyCookie  = "shop_currency"
	defaultCurrency = "USD"
	cookieAge       = 48 * time.Hour // as long as an untouched cart lives
)

// visit is one request for a page.
type visit struct {
	shop     *Shop
	w        http.ResponseWriter
	r        *http.Request
	ctx      context.Context
	ledger   *identity.Ledger
	shopper  string
	currency string

	// What the page's frame shows; nil until it was asked for.
	currencies []string
	cart       *boutiquev1.Cart
	// notices name the decorations that are missing.
	notices []string
}

// visitor makes a handler of a page: an error it returns becomes an error page.
func (s *Shop) visitor(show func(*visit) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ledger := &identity.Ledger{}
		v := &visit{shop: s, w: w, r: r, ledger: ledger, ctx: identity.WithLedger(r.Context(), ledger)}
		err := v.recognise()
		if err == nil {
			err = show(v)
		}
		if err != nil {
			v.fail(err)
		}
	})
}

// recognise reads the cookies and gives a new shopper an identifier.
func (v *visit) recognise() error {
	v.currency = defaultCurrency
	if cookie, err := v.r.Cookie(currencyCookie); err == nil && isCurrencyCode(cookie.Value) {
		v.currency = cookie.Value
	}
	if cookie, err := v.r.Cookie(sessionCookie); err == nil && isSession(cookie.Value) {
		v.shopper = cookie.Value
		return nil
	}
	var id [16]byte
	if _, err := io.ReadFull(v.shop.Random, id[:]); err != nil {
		return fmt.Errorf("draw a shopper's identifier: %w", err)
	}
	v.shopper = hex.EncodeToString(id[:])
	v.setCookie(sessionCookie, v.shopper)
	return nil
}

func (v *visit) setCookie(name, value string) {
	// Lax keeps other sites from posting in the shopper's name. Not Secure: the
	// shop speaks plaintext, TLS is the gateway's affair.
	http.SetCookie(v.w, &http.Cookie{Name: name, Value: value, Path: "/", MaxAge: int(cookieAge.Seconds()), HttpOnly: true, SameSite: http.SameSiteLaxMode})
}

func isCurrencyCode(text string) bool {
	return len(text) == 3 && strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

func isSession(text string) bool {
	raw, err := hex.DecodeString(text)
	return err == nil && len(raw) == 16
}

// ask makes one essential call with a deadline. An error names the call and
// keeps its status code.
func ask[Q, R any](v *visit, what string, limit time.Duration, method func(context.Context, Q, ...grpc.CallOption) (R, error), request Q) (R, error) {
	ctx, cancel := context.WithTimeout(v.ctx, limit)
	defer cancel()
	reply, err := method(ctx, request)
	if err != nil {
		err = status.Errorf(status.Code(err), "%s: %s", what, status.Convert(err).Message())
	}
	return reply, err
}

// missing notes that a decoration could not be had.
func (v *visit) missing(notice string, err error) {
	v.notices = append(v.notices, notice)
	v.shop.Log.Warn("page shown without a part", "path", v.r.URL.Path, "cause", err.Error())
}

// frame asks for what every page shows: the currencies and the cart.
func (v *visit) frame() error {
	listed, err := ask(v, "currencyservice ListCurrencies", role.CallTime, v.shop.Currency.ListCurrencies, &boutiquev1.ListCurrenciesRequest{})
	if err != nil {
		return err
	}
	v.currencies = listed.Currencies
	if !slices.Contains(v.currencies, v.currency) {
		v.currency = defaultCurrency
	}
	v.cart, err = ask(v, "cartservice GetCart", role.CallTime, v.shop.Cart.GetCart, &boutiquev1.GetCartRequest{ShopperId: v.shopper})
	return err
}

// cartCount is the number of pieces in the cart.
func (v *visit) cartCount() int {
	count := 0
	for _, line := range v.cart.GetLines() {
		count += int(line.Quantity)
	}
	return count
}

// convert converts amounts to the visitor's currency.
func (v *visit) convert(amounts []*boutiquev1.Money) ([]*boutiquev1.Money, error) {
	if len(amounts) == 0 {
		return nil, nil
	}
	reply, err := ask(v, "currencyservice Convert", role.CallTime, v.shop.Currency.Convert, &boutiquev1.ConvertRequest{Amounts: amounts, ToCurrency: v.currency})
	if err != nil {
		return nil, err
	}
	if len(reply.Amounts) != len(amounts) {
		return nil, status.Errorf(codes.Internal, "currencyservice Convert: %d amounts came back for %d", len(reply.Amounts), len(amounts))
	}
	return reply.Amounts, nil
}

// fail shows the error page.
func (v *visit) fail(err error) {
	page := explain(err)
	if page.Status >= http.StatusInternalServerError {
		v.shop.Log.Error("page failed", "method", v.r.Method, "path", v.r.URL.Path, "status", page.Status, "code", page.Code, "cause", err.Error())
	}
	v.render(page.Status, "error", page.Heading, page)
}

// redirect sends the visitor on after a form was posted.
func (v *visit) redirect(path string) error {
	http.Redirect(v.w, v.r, path, http.StatusSeeOther)
	return nil
}

// setCurrency remembers the choice and returns to the page it was made on.
func (v *visit) setCurrency() error {
	code := v.r.PostFormValue("currency_code")
	listed, err := ask(v, "currencyservice ListCurrencies", role.CallTime, v.shop.Currency.ListCurrencies, &boutiquev1.ListCurrenciesRequest{})
	if err != nil {
		return err
	}
	if !slices.Contains(listed.Currencies, code) {
		return refuse(http.StatusUnprocessableEntity, "We cannot show prices in %.20q. Choose one of %s.", code, strings.Join(listed.Currencies, ", "))
	}
	v.setCookie(currencyCookie, code)
	return v.redirect(ownPath(v.r.PostFormValue("return_to")))
}

// ownPath returns the path if it stays in this shop, else "/": a form made by
// somebody else must not lead a visitor away.
func ownPath(path string) string {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "\\\r\n\t") {
		return "/"
	}
	return path
}
