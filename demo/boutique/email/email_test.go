package email

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/money"
)

func TestConfirmationNamesWhatWasBought(t *testing.T) {
	var log bytes.Buffer
	service := &Service{Log: slog.New(slog.NewTextHandler(&log, nil))}
	_, err := service.SendOrderConfirmation(context.Background(), &boutiquev1.SendOrderConfirmationRequest{
		Email: "anna@example.com",
		Order: &boutiquev1.Order{Number: "LS-1", TrackingId: "TRK-1", Total: money.New("EUR", 24, 0), Shipping: money.New("EUR", 4, 0),
			Lines: []*boutiquev1.OrderLine{{ProductName: "Mug", Quantity: 2, UnitPrice: money.New("EUR", 10, 0)}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"anna@example.com", "LS-1", "TRK-1", "2 x Mug, €10.00 each", "€24.00"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the mail lacks %q: %s", part, log.String())
		}
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	service := &Service{Log: slog.New(slog.DiscardHandler)}
	order := &boutiquev1.Order{Number: "LS-1"}
	for _, request := range []*boutiquev1.SendOrderConfirmationRequest{
		{Order: order},
		{Email: "not an address", Order: order},
		{Email: "a@example.com\r\nBcc: b@example.com", Order: order},
		{Email: "Anna <a@example.com>", Order: order},
		{Email: "a@example.com"},
	} {
		if _, err := service.SendOrderConfirmation(context.Background(), request); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", request, err)
		}
	}
}
