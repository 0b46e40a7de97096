package main

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/demo/boutique/identity"
	"heddle.io/heddle/demo/boutique/loadgenerator"
	"heddle.io/heddle/demo/boutique/role"
)

func TestTwoProductsAreBought(t *testing.T) {
	s := open(t)
	v := s.visitor()
	v.expect(v.visit(200, "/"), "Harbour Wool Blanket", "$129.00", `id="ad"`, `data-service="adservice"`, `id="cart-count" data-testid="cart-count" class="count">0<`)
	v.expect(v.visit(200, "/setCurrency", "currency_code", "EUR", "return_to", "/product/rainy-teapot"), "€41.77", "Rainy Day Teapot", `id="add-to-cart"`, `id="recommendations"`)
	v.visit(200, "/cart", "product_id", "rainy-teapot", "quantity", "2")
	cart := v.visit(200, "/cart", "product_id", "speckled-mug", "quantity", "3")
	if got := v.textOf(cart, "cart-count"); got != "5" {
		t.Errorf("cart count is %q", got)
	}
	_, suggested, _ := strings.Cut(cart, `id="recommendations"`)
	if strings.Contains(suggested, `data-product="rainy-teapot"`) || strings.Contains(suggested, `data-product="speckled-mug"`) {
		t.Error("something in the cart is recommended")
	}
	v.expect(v.visit(200, "/checkout"), `id="place-order"`, `value="4242 4242 4242 4242"`)

	order := v.visit(200, "/checkout", goodOrder()...)
	number := v.textOf(order, "order-number")
	if !strings.HasPrefix(number, "LS-") || !strings.HasPrefix(v.textOf(order, "tracking-id"), "TRK-") {
		t.Errorf("order %q, tracking %q", number, v.textOf(order, "tracking-id"))
	}
	if total, before := v.textOf(order, "order-total"), v.textOf(cart, "cart-total"); total != before || !strings.HasPrefix(total, "€") {
		t.Errorf("charged %s, the cart said %s", total, before)
	}
	v.expect(order, `data-caller="checkoutservice" data-service="paymentservice" data-method="Charge" data-client="plaintext"`,
		`data-caller="checkoutservice" data-service="emailservice"`, `data-caller="recommendationservice" data-service="productcatalogservice"`,
		`data-served-by="shippingservice/host/test"`)
	if count := v.textOf(order, "cart-count"); count != "0" {
		t.Errorf("cart count after the order is %q", count)
	}

	lines := 0
	for _, line := range strings.Split(s.logs["checkoutservice"].String(), "\n") {
		if strings.Contains(line, `"msg":"order placed"`) && strings.Contains(line, `"order":"`+number+`"`) {
			lines++
		}
	}
	if lines != 1 {
		t.Errorf("checkout logged order %s %d times: %s", number, lines, s.logs["checkoutservice"])
	}
	if !strings.Contains(s.logs["emailservice"].String(), number) {
		t.Error("no confirmation was logged")
	}
	for name, log := range s.logs {
		if strings.Contains(log.String(), "4242424242424242") {
			t.Errorf("%s logged the card number", name)
		}
	}
	v.expect(v.visit(409, "/checkout", goodOrder()...), "nothing in your cart")
}

func TestBadInputIsRefusedWithAReason(t *testing.T) {
	s := open(t)
	v := s.visitor()
	v.expect(v.visit(404, "/product/submarine"), "We do not sell that")
	v.expect(v.visit(404, "/no-such-page"), "no such page")
	v.expect(v.visit(404, "/cart", "product_id", "submarine", "quantity", "1"), "not put into the cart")
	for _, quantity := range []string{"", "0", "-1", "11", "1.5", "1e3", "99999999999999999999", "１", "0x2", "1; DROP TABLE"} {
		v.expect(v.visit(422, "/cart", "product_id", "rainy-teapot", "quantity", quantity), "between 1 and 10")
	}
	v.expect(v.visit(409, "/checkout", goodOrder()...), "nothing in your cart")
	v.expect(v.visit(422, "/setCurrency", "currency_code", "<script>"), "&lt;script&gt;")
	v.expect(v.visit(200, "/setCurrency", "currency_code", "EUR", "return_to", "//evil.example/"), `data-testid="shelf"`)
	v.expect(v.visit(200, "/?q=%3Cscript%3E"), "Nothing found for “&lt;script&gt;”")

	for range 9 {
		v.visit(200, "/cart", "product_id", "rainy-teapot", "quantity", "10")
	}
	v.visit(200, "/cart", "product_id", "rainy-teapot", "quantity", "9")
	v.expect(v.visit(409, "/cart", "product_id", "rainy-teapot", "quantity", "1"), "cannot hold that much")

	for _, c := range []struct{ name, value, says string }{
		{"credit_card_number", "4242424242424241", "check digit does not match"},
		{"credit_card_number", "378282246310005", "not accepted"},
		{"credit_card_expiration_month", "4", "expired at the end of 04/2030"},
		{"credit_card_expiration_month", "13", "between 1 and 12"},
		{"credit_card_expiration_year", "soon", "between 2000 and 9999"},
		{"credit_card_cvv", "1", "security code"},
		{"email", "anna at example", "not an email address"},
		{"city", "", "City is needed"},
		{"street_address", strings.Repeat("x", 121), "shorter than 120"},
	} {
		page := v.visit(422, "/checkout", goodOrder(c.name, c.value)...)
		v.expect(page, c.says, `id="form-problems"`, "nothing was charged")
	}
	if strings.Contains(s.logs["checkoutservice"].String(), "order placed") || strings.Contains(s.logs["paymentservice"].String(), "card charged") {
		t.Error("a refused order was placed or charged")
	}
	v.visit(200, "/checkout", goodOrder()...)
}

func TestThePageDoesWithoutDecorations(t *testing.T) {
	s := open(t)
	v := s.visitor()
	s.stops["adservice"]()
	s.stops["recommendationservice"]()
	s.stops["emailservice"]()
	v.expect(v.visit(200, "/"), "Advertisements are unavailable", "Harbour Wool Blanket", `data-service="adservice" data-method="PickAds" data-client="no answer"`)
	v.visit(200, "/cart", "product_id", "heron-lamp", "quantity", "1")
	order := v.visit(200, "/checkout", goodOrder()...)
	v.expect(order, "Recommendations are unavailable", "could not send the confirmation")
	v.textOf(order, "order-number")

	s.stops["productcatalogservice"]()
	page := v.visit(503, "/")
	if code := v.textOf(page, "grpc-status"); code != "Unavailable" {
		t.Errorf("the error page says %q", code)
	}
	v.expect(page, "productcatalogservice ListProducts")
}

func TestTheFooterShowsTheIdentityTheFrontendSaw(t *testing.T) {
	s := open(t)
	v := s.visitor()
	const client, server = "spiffe://cluster.local/ns/istio-system/sa/gateway", "spiffe://cluster.local/ns/pinnacle/sa/frontend"
	v.header.Set(identity.HeaderForwarded, `By=`+server+`;Hash=00;Subject="CN=\"a,b\"";URI=`+client+`;DNS=far.clusters.cluster.local`)
	v.expect(v.visit(200, "/"), `data-caller="visitor" data-service="frontend" data-method="GET" data-client="`+client+`" data-server="`+server+`"`,
		`data-client-cluster="far" data-server-cluster="test"`, `data-clusters="test"`)
	v.header.Set(identity.HeaderForwarded, `By=x;URI="<script>alert(1)</script>"`)
	if page := v.visit(200, "/"); strings.Contains(page, "<script>") {
		t.Error("a header became markup")
	}
}

func TestHealthAndPictures(t *testing.T) {
	s := open(t)
	v := s.visitor()
	for _, path := range []string{"/healthz", "/_healthz"} {
		if body := v.visit(200, path); body != "ok\n" {
			t.Errorf("%s says %q", path, body)
		}
	}
	for _, part := range strings.Split(v.visit(200, "/"), `src="`)[1:] {
		path, _, _ := strings.Cut(part, `"`)
		if picture := v.visit(200, path); !strings.HasPrefix(picture, "<svg") {
			t.Errorf("%s is not a drawing", path)
		}
	}
	for _, path := range []string{"/static/", "/static/products/", "/static/../pages/home.html", "/static/none.svg"} {
		v.visit(404, path)
	}
}

func TestTheLoadGeneratorBuys(t *testing.T) {
	s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	chooser, err := role.Env{Random: rand.Reader}.Chooser()
	if err != nil {
		t.Fatal(err)
	}
	pace := make(chan time.Time)
	go func() {
		defer cancel()
		for range 150 {
			pace <- time.Time{}
		}
	}()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	generator := &loadgenerator.Generator{Base: "http://" + s.environ["FRONTEND_ADDR"], Pace: pace, Chooser: chooser, Log: slog.New(slog.DiscardHandler), Transport: transport}
	counts := generator.Visit(ctx)
	if counts.Orders == 0 || counts.Failed != 0 || counts.Refused != 0 {
		t.Errorf("counts are %+v", counts)
	}
}
