package checkout

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/money"
)

// peers plays all the services checkout calls, and fails where it is told to.
type peers struct {
	boutiquev1.CartServiceClient
	boutiquev1.CurrencyServiceClient
	boutiquev1.EmailServiceClient
	boutiquev1.PaymentServiceClient
	boutiquev1.ProductCatalogServiceClient
	boutiquev1.ShippingServiceClient
	lines []*boutiquev1.CartLine
	fails map[string]codes.Code
	calls []string
}

func (p *peers) called(method string) error {
	p.calls = append(p.calls, method)
	if code := p.fails[method]; code != codes.OK {
		return status.Error(code, method+" was told to fail")
	}
	return nil
}

func (p *peers) GetCart(context.Context, *boutiquev1.GetCartRequest, ...grpc.CallOption) (*boutiquev1.Cart, error) {
	return &boutiquev1.Cart{Lines: p.lines}, p.called("GetCart")
}

func (p *peers) EmptyCart(context.Context, *boutiquev1.EmptyCartRequest, ...grpc.CallOption) (*boutiquev1.Cart, error) {
	return &boutiquev1.Cart{}, p.called("EmptyCart")
}

func (p *peers) Convert(_ context.Context, request *boutiquev1.ConvertRequest, _ ...grpc.CallOption) (*boutiquev1.ConvertResponse, error) {
	return &boutiquev1.ConvertResponse{Amounts: request.Amounts}, p.called("Convert")
}

func (p *peers) SendOrderConfirmation(context.Context, *boutiquev1.SendOrderConfirmationRequest, ...grpc.CallOption) (*boutiquev1.SendOrderConfirmationResponse, error) {
	return &boutiquev1.SendOrderConfirmationResponse{}, p.called("SendOrderConfirmation")
}

func (p *peers) Charge(context.Context, *boutiquev1.ChargeRequest, ...grpc.CallOption) (*boutiquev1.ChargeResponse, error) {
	return &boutiquev1.ChargeResponse{TransactionId: "PAY-1"}, p.called("Charge")
}

func (p *peers) Refund(context.Context, *boutiquev1.RefundRequest, ...grpc.CallOption) (*boutiquev1.RefundResponse, error) {
	return &boutiquev1.RefundResponse{}, p.called("Refund")
}

func (p *peers) GetProduct(_ context.Context, request *boutiquev1.GetProductRequest, _ ...grpc.CallOption) (*boutiquev1.Product, error) {
	return &boutiquev1.Product{Id: request.Id, Name: request.Id, Price: money.New("USD", 10, 4_000_000)}, p.called("GetProduct")
}

func (p *peers) Quote(context.Context, *boutiquev1.QuoteRequest, ...grpc.CallOption) (*boutiquev1.QuoteResponse, error) {
	return &boutiquev1.QuoteResponse{Cost: money.New("USD", 5, 0)}, p.called("Quote")
}

func (p *peers) Ship(context.Context, *boutiquev1.ShipRequest, ...grpc.CallOption) (*boutiquev1.ShipResponse, error) {
	return &boutiquev1.ShipResponse{TrackingId: "TRK-1"}, p.called("Ship")
}

func TestPlaceOrder(t *testing.T) {
	two := []*boutiquev1.CartLine{{ProductId: "mug", Quantity: 3}, {ProductId: "lamp", Quantity: 1}}
	for _, c := range []struct {
		name  string
		lines []*boutiquev1.CartLine
		fails string
		with  codes.Code
		want  codes.Code
		last  string // the last call made
	}{
		{"all is well", two, "", codes.OK, codes.OK, "SendOrderConfirmation"},
		{"empty cart", nil, "", codes.OK, codes.FailedPrecondition, "GetCart"},
		{"no cart service", two, "GetCart", codes.Unavailable, codes.Unavailable, "GetCart"},
		{"product gone", two, "GetProduct", codes.NotFound, codes.FailedPrecondition, "GetProduct"},
		{"no catalogue", two, "GetProduct", codes.PermissionDenied, codes.PermissionDenied, "GetProduct"},
		{"no rates", two, "Convert", codes.Unavailable, codes.Unavailable, "Convert"},
		{"card refused", two, "Charge", codes.InvalidArgument, codes.InvalidArgument, "Charge"},
		{"not shipped", two, "Ship", codes.Unavailable, codes.Unavailable, "Refund"},
		{"cart not emptied", two, "EmptyCart", codes.Unavailable, codes.OK, "SendOrderConfirmation"},
		{"email fails", two, "SendOrderConfirmation", codes.Unavailable, codes.OK, "SendOrderConfirmation"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			p := &peers{lines: c.lines, fails: map[string]codes.Code{c.fails: c.with}}
			service := &Service{Cart: p, Currency: p, Email: p, Payment: p, Catalog: p, Shipping: p,
				Random: strings.NewReader("abcdefghijkl"), Log: slog.New(slog.NewJSONHandler(&log, nil))}
			reply, err := service.PlaceOrder(t.Context(), &boutiquev1.PlaceOrderRequest{ShopperId: "anna", Currency: "USD"})
			if status.Code(err) != c.want {
				t.Fatalf("PlaceOrder: %v, want %s", err, c.want)
			}
			if last := p.calls[len(p.calls)-1]; last != c.last {
				t.Errorf("calls were %v, want %s last", p.calls, c.last)
			}
			placed := strings.Count(log.String(), `"msg":"order placed","order":"LS-1234-5678-9ABC"`)
			if c.want != codes.OK {
				if placed != 0 {
					t.Errorf("a failed order was logged as placed: %s", log.String())
				}
				return
			}
			// 3 × 10.004, rounded to 10.00 each, and 10.00 and 5.00.
			if placed != 1 || money.Format(reply.Order.Total) != "$45.00" || reply.ConfirmationSent != (c.fails != "SendOrderConfirmation") {
				t.Errorf("reply %v, log %s", reply, log.String())
			}
			if !slices.Contains(p.calls, "EmptyCart") || slices.Contains(p.calls, "Refund") {
				t.Errorf("calls were %v", p.calls)
			}
		})
	}
}
