// Package checkout is the role that turns a cart into an order.
package checkout

import (
	"context"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/identity"
	"heddle.io/heddle/demo/boutique/money"
	"heddle.io/heddle/demo/boutique/role"
)

// Name and Port are the role's name and the TCP port it listens on by default.
const (
	Name = "checkoutservice"
	Port = 5050
)

// Service implements boutiquev1.CheckoutServiceServer.
type Service struct {
	boutiquev1.UnimplementedCheckoutServiceServer
	Cart     boutiquev1.CartServiceClient
	Currency boutiquev1.CurrencyServiceClient
	Email    boutiquev1.EmailServiceClient
	Payment  boutiquev1.PaymentServiceClient
	Catalog  boutiquev1.ProductCatalogServiceClient
	Shipping boutiquev1.ShippingServiceClient
	// Random is read for order numbers.
	Random io.Reader
	// Log receives one line per order.
	Log *slog.Logger
}

// Run serves the role until ctx ends. Its peers are at CART_SERVICE_ADDR,
// CURRENCY_SERVICE_ADDR, EMAIL_SERVICE_ADDR, PAYMENT_SERVICE_ADDR,
// PRODUCT_CATALOG_SERVICE_ADDR and SHIPPING_SERVICE_ADDR.
func Run(ctx context.Context, env role.Env) error {
	dial := role.NewDialer(env, Name)
	defer dial.Close()
	service := &Service{
		Cart:     boutiquev1.NewCartServiceClient(dial.To("cartservice", "CART_SERVICE_ADDR", "cartservice:7070")),
		Currency: boutiquev1.NewCurrencyServiceClient(dial.To("currencyservice", "CURRENCY_SERVICE_ADDR", "currencyservice:7000")),
		Email:    boutiquev1.NewEmailServiceClient(dial.To("emailservice", "EMAIL_SERVICE_ADDR", "emailservice:5000")),
		Payment:  boutiquev1.NewPaymentServiceClient(dial.To("paymentservice", "PAYMENT_SERVICE_ADDR", "paymentservice:50051")),
		Catalog:  boutiquev1.NewProductCatalogServiceClient(dial.To("productcatalogservice", "PRODUCT_CATALOG_SERVICE_ADDR", "productcatalogservice:3550")),
		Shipping: boutiquev1.NewShippingServiceClient(dial.To("shippingservice", "SHIPPING_SERVICE_ADDR", "shippingservice:50051")),
		Random:   env.Random,
		Log:      env.Log,
	}
	if err := dial.Err(); err != nil {
		return err
	}
	return role.ServeGRPC(ctx, env, Name, Port, func(server *grpc.Server) {
		boutiquev1.RegisterCheckoutServiceServer(server, service)
	})
}

// PlaceOrder buys the cart. Until the card is charged any failure leaves
// everything as it was; a parcel that cannot be sent after that is refunded; what
// fails later, the emptying of the cart and the confirmation, does not undo the
// order.
func (s *Service) PlaceOrder(ctx context.Context, request *boutiquev1.PlaceOrderRequest) (*boutiquev1.PlaceOrderResponse, error) {
	ledger := &identity.Ledger{}
	ctx = identity.WithLedger(ctx, ledger)
	order, cartLines, err := s.prepare(ctx, request)
	if err != nil {
		return nil, err
	}

	charged, err := call(ctx, "paymentservice Charge", s.Payment.Charge, &boutiquev1.ChargeRequest{Amount: order.Total, Card: request.Card})
	if err != nil {
		return nil, err
	}
	shipped, err := call(ctx, "shippingservice Ship", s.Shipping.Ship, &boutiquev1.ShipRequest{Address: request.Address, Lines: cartLines})
	if err != nil {
		s.refund(ctx, order.Number, charged.TransactionId)
		return nil, err
	}
	order.TrackingId = shipped.TrackingId

	// From here on the order stands, even if the shopper has gone away.
	ctx = context.WithoutCancel(ctx)
	if _, err := call(ctx, "cartservice EmptyCart", s.Cart.EmptyCart, &boutiquev1.EmptyCartRequest{ShopperId: request.ShopperId}); err != nil {
		s.Log.Warn("the cart of a placed order was not emptied", "order", order.Number, "cause", err.Error())
	}
	_, emailErr := call(ctx, "emailservice SendOrderConfirmation", s.Email.SendOrderConfirmation, &boutiquev1.SendOrderConfirmationRequest{Email: request.Email, Order: order})
	if emailErr != nil {
		s.Log.Warn("no confirmation was sent", "order", order.Number, "cause", emailErr.Error())
	}

	s.Log.Info("order placed", "order", order.Number, "total", money.Format(order.Total), "currency", order.Total.Currency,
		"lines", len(order.Lines), "tracking", order.TrackingId, "transaction", charged.TransactionId, "confirmation_sent", emailErr == nil)
	return &boutiquev1.PlaceOrderResponse{Order: order, ConfirmationSent: emailErr == nil, Hops: ledger.Hops()}, nil
}

// prepare prices the cart without changing anything.
func (s *Service) prepare(ctx context.Context, request *boutiquev1.PlaceOrderRequest) (*boutiquev1.Order, []*boutiquev1.CartLine, error) {
	cart, err := call(ctx, "cartservice GetCart", s.Cart.GetCart, &boutiquev1.GetCartRequest{ShopperId: request.ShopperId})
	if err != nil {
		return nil, nil, err
	}
	if len(cart.Lines) == 0 {
		return nil, nil, status.Error(codes.FailedPrecondition, "the cart is empty; put something into it first")
	}
	quoted, err := call(ctx, "shippingservice Quote", s.Shipping.Quote, &boutiquev1.QuoteRequest{Address: request.Address, Lines: cart.Lines})
	if err != nil {
		return nil, nil, err
	}
	order := &boutiquev1.Order{Address: request.Address}
	prices := []*boutiquev1.Money{quoted.Cost}
	for _, line := range cart.Lines {
		product, err := call(ctx, "productcatalogservice GetProduct", s.Catalog.GetProduct, &boutiquev1.GetProductRequest{Id: line.ProductId})
		if status.Code(err) == codes.NotFound {
			return nil, nil, status.Errorf(codes.FailedPrecondition, "the shop no longer sells %.60q; empty the cart and choose again", line.ProductId)
		}
		if err != nil {
			return nil, nil, err
		}
		order.Lines = append(order.Lines, &boutiquev1.OrderLine{ProductId: product.Id, ProductName: product.Name, Quantity: line.Quantity})
		prices = append(prices, product.Price)
	}
	converted, err := call(ctx, "currencyservice Convert", s.Currency.Convert, &boutiquev1.ConvertRequest{Amounts: prices, ToCurrency: request.Currency})
	if err != nil {
		return nil, nil, err
	}
	if len(converted.Amounts) != len(prices) {
		return nil, nil, status.Errorf(codes.Internal, "currencyservice Convert: %d amounts came back for %d", len(converted.Amounts), len(prices))
	}
	if err := total(order, converted.Amounts); err != nil {
		return nil, nil, status.Errorf(codes.OutOfRange, "add up the order: %v", err)
	}
	if order.Number, err = role.Number(s.Random, "LS", 3); err != nil {
		return nil, nil, status.Errorf(codes.Internal, "%v", err)
	}
	return order, cart.Lines, nil
}

// total fills in the prices, the shipping's first, and their sum.
func total(order *boutiquev1.Order, prices []*boutiquev1.Money) error {
	for i, price := range prices {
		if err := money.Check(price); err != nil {
			return err
		}
		rounded, err := money.RoundToMinor(price)
		if err != nil {
			return err
		}
		if i == 0 {
			order.Shipping, order.Total = rounded, rounded
			continue
		}
		line := order.Lines[i-1]
		line.UnitPrice = rounded
		cost, err := money.Times(rounded, line.Quantity)
		if err != nil {
			return err
		}
		if order.Total, err = money.Add(order.Total, cost); err != nil {
			return err
		}
	}
	return nil
}

// refundTime is how long a refund may take after the shopper has gone.
const refundTime = 5 * time.Second

func (s *Service) refund(ctx context.Context, order, transaction string) {
	// The shopper's deadline may be what made the order fail.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refundTime)
	defer cancel()
	if _, err := s.Payment.Refund(ctx, &boutiquev1.RefundRequest{TransactionId: transaction}); err != nil {
		s.Log.Error("a failed order was charged and not refunded; refund it by hand", "order", order, "transaction", transaction, "cause", err.Error())
		return
	}
	s.Log.Warn("order failed and refunded", "order", order, "transaction", transaction)
}

// call makes one call with a deadline and, when it fails, says which it was,
// keeping the status code.
func call[Q, R any](ctx context.Context, what string, method func(context.Context, Q, ...grpc.CallOption) (R, error), request Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, role.CallTime)
	defer cancel()
	reply, err := method(ctx, request)
	if err != nil {
		err = status.Errorf(status.Code(err), "%s: %s", what, status.Convert(err).Message())
	}
	return reply, err
}
