package payment

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/money"
)

const visa = "4242 4242 4242 4242"

func service(log *bytes.Buffer, now time.Time) *Service {
	return &Service{
		Now:    func() time.Time { return now },
		Random: strings.NewReader(strings.Repeat("loom", 100)),
		Log:    slog.New(slog.NewJSONHandler(log, nil)),
	}
}

func TestCharge(t *testing.T) {
	june := time.Date(2031, 6, 30, 23, 59, 59, 0, time.UTC)
	good := func() *boutiquev1.ChargeRequest {
		return &boutiquev1.ChargeRequest{Amount: money.New("EUR", 10, 0),
			Card: &boutiquev1.Card{Number: visa, SecurityCode: "123", ExpiryYear: 2031, ExpiryMonth: 6}}
	}
	for _, c := range []struct {
		name   string
		change func(*boutiquev1.ChargeRequest)
		says   string // "" expects success
	}{
		{"good until the end of the month", func(*boutiquev1.ChargeRequest) {}, ""},
		{"mastercard", func(r *boutiquev1.ChargeRequest) { r.Card.Number = "5555-5555-5555-4444" }, ""},
		{"mastercard of the 2 series", func(r *boutiquev1.ChargeRequest) { r.Card.Number = "2223003122003222" }, ""},
		{"no card", func(r *boutiquev1.ChargeRequest) { r.Card = nil }, "digits"},
		{"wrong digit", func(r *boutiquev1.ChargeRequest) { r.Card.Number = "4242424242424241" }, "check digit"},
		{"letters", func(r *boutiquev1.ChargeRequest) { r.Card.Number = "4242x42424242424" }, "digits"},
		{"other digits", func(r *boutiquev1.ChargeRequest) { r.Card.Number = "٤٢٤٢٤٢٤٢" }, "digits"},
		{"too long", func(r *boutiquev1.ChargeRequest) { r.Card.Number = strings.Repeat("0", 5000) }, "digits"},
		{"other brand", func(r *boutiquev1.ChargeRequest) { r.Card.Number = "378282246310005" }, "not accepted"},
		{"security code", func(r *boutiquev1.ChargeRequest) { r.Card.SecurityCode = "12a" }, "security code"},
		{"expired", func(r *boutiquev1.ChargeRequest) { r.Card.ExpiryMonth = 5 }, "expired at the end of 05/2031"},
		{"month 0", func(r *boutiquev1.ChargeRequest) { r.Card.ExpiryMonth = 0 }, "month"},
		{"month 13", func(r *boutiquev1.ChargeRequest) { r.Card.ExpiryMonth = 13 }, "month"},
		{"short year", func(r *boutiquev1.ChargeRequest) { r.Card.ExpiryYear = 31 }, "four digits"},
		{"nothing to pay", func(r *boutiquev1.ChargeRequest) { r.Amount = money.New("EUR", 0, 0) }, "not more than nothing"},
		{"negative", func(r *boutiquev1.ChargeRequest) { r.Amount = money.New("EUR", -1, 0) }, "not more than nothing"},
		{"no amount", func(r *boutiquev1.ChargeRequest) { r.Amount = nil }, "amount"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			request := good()
			c.change(request)
			reply, err := service(&log, june).Charge(context.Background(), request)
			if c.says == "" {
				if err != nil || !strings.HasPrefix(reply.TransactionId, "PAY-") {
					t.Fatalf("Charge = %v, %v", reply, err)
				}
			} else if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("Charge: %v, want INVALID_ARGUMENT with %q", err, c.says)
			}
			if number := request.GetCard().GetNumber(); number != "" && strings.Contains(log.String()+fmt.Sprint(err), number) {
				t.Fatalf("the card number leaked: %s %v", log.String(), err)
			}
		})
	}
}

func TestLuhnFindsEveryWrongDigit(t *testing.T) {
	const number = "4242424242424242"
	for i := range number {
		for digit := byte('0'); digit <= '9'; digit++ {
			changed := []byte(number)
			changed[i] = digit
			if want := digit == number[i]; luhn(string(changed)) != want {
				t.Errorf("luhn(%s) = %v", changed, !want)
			}
		}
	}
}
