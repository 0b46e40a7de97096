package shipping

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/money"
)

func lines(quantities ...int32) []*boutiquev1.CartLine {
	var made []*boutiquev1.CartLine
	for _, quantity := range quantities {
		made = append(made, &boutiquev1.CartLine{ProductId: "p", Quantity: quantity})
	}
	return made
}

func TestQuote(t *testing.T) {
	service := &Service{Log: slog.New(slog.DiscardHandler)}
	for _, c := range []struct {
		lines []*boutiquev1.CartLine
		want  string
		code  codes.Code
	}{
		{nil, "$0.00", codes.OK},
		{lines(1), "$6.09", codes.OK},
		{lines(2, 3), "$10.49", codes.OK},
		{lines(0), "", codes.InvalidArgument},
		{lines(5, -1), "", codes.InvalidArgument},
		{lines(math.MaxInt32, math.MaxInt32), "", codes.InvalidArgument},
		{[]*boutiquev1.CartLine{nil}, "", codes.InvalidArgument},
	} {
		reply, err := service.Quote(context.Background(), &boutiquev1.QuoteRequest{Lines: c.lines})
		if status.Code(err) != c.code {
			t.Errorf("Quote(%v): %v, want %s", c.lines, err, c.code)
		} else if err == nil && money.Format(reply.Cost) != c.want {
			t.Errorf("Quote(%v) = %s, want %s", c.lines, money.Format(reply.Cost), c.want)
		}
	}
}

func TestShip(t *testing.T) {
	service := &Service{Random: strings.NewReader("abcdefghijkl"), Log: slog.New(slog.DiscardHandler)}
	address := &boutiquev1.Address{Street: "1 Weir Lane", City: "Leeds", Country: "UK"}
	if _, err := service.Ship(context.Background(), &boutiquev1.ShipRequest{Lines: lines(1)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without an address: %v", err)
	}
	if _, err := service.Ship(context.Background(), &boutiquev1.ShipRequest{Address: address}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without goods: %v", err)
	}
	reply, err := service.Ship(context.Background(), &boutiquev1.ShipRequest{Address: address, Lines: lines(1)})
	if err != nil || reply.TrackingId != "TRK-1234-5678-9ABC" {
		t.Errorf("Ship = %v, %v", reply, err)
	}
	if _, err := service.Ship(context.Background(), &boutiquev1.ShipRequest{Address: address, Lines: lines(1)}); status.Code(err) != codes.Internal {
		t.Errorf("without randomness: %v", err)
	}
}
