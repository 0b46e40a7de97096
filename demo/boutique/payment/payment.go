// Package payment is the role that checks cards and pretends to charge them.
// Card numbers never reach a log or an error.
package payment

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/money"
	"heddle.io/heddle/demo/boutique/role"
)

// Name and Port are the role's name and the TCP port it listens on by default.
const (
	Name = "paymentservice"
	Port = 50051
)

// Service implements boutiquev1.PaymentServiceServer.
type Service struct {
	boutiquev1.UnimplementedPaymentServiceServer
	// Now tells whether a card has expired.
	Now func() time.Time
	// Random is read for transaction identifiers.
	Random io.Reader
	// Log receives one line per charge and refund.
	Log *slog.Logger
}

// Run serves the role until ctx ends.
func Run(ctx context.Context, env role.Env) error {
	return role.ServeGRPC(ctx, env, Name, Port, func(server *grpc.Server) {
		boutiquev1.RegisterPaymentServiceServer(server, &Service{Now: env.Now, Random: env.Random, Log: env.Log})
	})
}

// Charge takes the amount from the card.
func (s *Service) Charge(_ context.Context, request *boutiquev1.ChargeRequest) (*boutiquev1.ChargeResponse, error) {
	if err := money.Check(request.Amount); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "amount: %v", err)
	}
	if money.ToNanos(request.Amount).Sign() <= 0 {
		return nil, status.Errorf(codes.InvalidArgument, "amount: %s is not more than nothing", money.Format(request.Amount))
	}
	brand, err := checkCard(request.Card, s.Now())
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "card: %v", err)
	}
	transaction, err := role.Number(s.Random, "PAY", 4)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "%v", err)
	}
	s.Log.Info("card charged", "transaction", transaction, "brand", brand, "amount", money.Format(request.Amount))
	return &boutiquev1.ChargeResponse{TransactionId: transaction}, nil
}

// Refund gives a charge back.
func (s *Service) Refund(_ context.Context, request *boutiquev1.RefundRequest) (*boutiquev1.RefundResponse, error) {
	if request.TransactionId == "" || len(request.TransactionId) > 128 {
		return nil, status.Error(codes.InvalidArgument, "transaction_id: it must have between 1 and 128 bytes; send the one Charge returned")
	}
	s.Log.Info("card refunded", "transaction", request.TransactionId)
	return &boutiquev1.RefundResponse{}, nil
}

// checkCard returns the card's brand, or in words for the shopper what is wrong.
func checkCard(card *boutiquev1.Card, now time.Time) (brand string, err error) {
	digits := strings.NewReplacer(" ", "", "-", "").Replace(card.GetNumber())
	if len(digits) < 12 || len(digits) > 19 || strings.Trim(digits, "0123456789") != "" {
		return "", fmt.Errorf("the number must have 12 to 19 digits; check it against the card")
	}
	if !luhn(digits) {
		return "", fmt.Errorf("the number's check digit does not match; a digit is probably mistyped")
	}
	switch brand = brandOf(digits); brand {
	case "visa", "mastercard":
	default:
		return "", fmt.Errorf("this kind of card is not accepted; use a Visa or Mastercard")
	}
	code := card.GetSecurityCode()
	if len(code) < 3 || len(code) > 4 || strings.Trim(code, "0123456789") != "" {
		return "", fmt.Errorf("the security code must have three or four digits; it stands on the back of the card")
	}
	year, month := card.GetExpiryYear(), card.GetExpiryMonth()
	if month < 1 || month > 12 {
		return "", fmt.Errorf("the expiry month must be between 1 and 12, not %d", month)
	}
	if year < 2000 || year > 9999 {
		return "", fmt.Errorf("the expiry year must have four digits, such as %d, not %d", now.Year()+1, year)
	}
	// A card is good until its month ends: month 13 is the next year's January.
	if end := time.Date(int(year), time.Month(month)+1, 1, 0, 0, 0, 0, time.UTC); !now.Before(end) {
		return "", fmt.Errorf("it expired at the end of %02d/%d; use another card", month, year)
	}
	return brand, nil
}

// luhn checks a number's last digit (ISO/IEC 7812-1, annex B). number must hold
// digits only.
func luhn(number string) bool {
	sum := 0
	for i := range len(number) {
		digit := int(number[len(number)-1-i] - '0')
		if i%2 == 1 {
			if digit *= 2; digit > 9 {
				digit -= 9
			}
		}
		sum += digit
	}
	return sum%10 == 0
}

func brandOf(digits string) string {
	switch prefix := digits[:4]; {
	case digits[0] == '4':
		return "visa"
	case prefix >= "5100" && prefix < "5600", prefix >= "2221" && prefix < "2721":
		return "mastercard"
	}
	return "other"
}
