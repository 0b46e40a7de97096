// Package currency is the role that converts prices, with a table of fixed
// rates and without rounding before the last step.
package currency

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/money"
	"heddle.io/heddle/demo/boutique/role"
)

// Name and Port are the role's name and the TCP port it listens on by default.
const (
	Name = "currencyservice"
	Port = 7000
)

const maxAmounts = 500

// perEuro is what one euro buys, in billionths of each currency: a fixed table,
// so that prices are the same on every day of a demonstration.
var perEuro = map[string]*big.Int{
	"AUD": rate("1.7420"),
	"BRL": rate("6.1835"),
	"CAD": rate("1.5990"),
	"CHF": rate("0.9365"),
	"EUR": rate("1"),
	"GBP": rate("0.8648"),
	"INR": rate("101.75"),
	"JPY": rate("172.40"),
	"SEK": rate("10.9450"),
	"USD": rate("1.1612"),
}

// rate reads a decimal with at most nine places.
func rate(decimal string) *big.Int {
	value, ok := new(big.Rat).SetString(decimal)
	if !ok {
		panic("currency: rate " + decimal + " in the table is not a number")
	}
	value.Mul(value, big.NewRat(money.Billion, 1))
	if !value.IsInt() || value.Sign() <= 0 {
		panic("currency: rate " + decimal + " in the table is not a positive number of billionths")
	}
	return value.Num()
}

// Service implements boutiquev1.CurrencyServiceServer.
type Service struct {
	boutiquev1.UnimplementedCurrencyServiceServer
}

// Run serves the role until ctx ends.
func Run(ctx context.Context, env role.Env) error {
	return role.ServeGRPC(ctx, env, Name, Port, func(server *grpc.Server) {
		boutiquev1.RegisterCurrencyServiceServer(server, Service{})
	})
}

// ListCurrencies returns the codes of the table.
func (Service) ListCurrencies(context.Context, *boutiquev1.ListCurrenciesRequest) (*boutiquev1.ListCurrenciesResponse, error) {
	return &boutiquev1.ListCurrenciesResponse{Currencies: slices.Sorted(maps.Keys(perEuro))}, nil
}

// Convert converts each amount of the request.
func (Service) Convert(_ context.Context, request *boutiquev1.ConvertRequest) (*boutiquev1.ConvertResponse, error) {
	if len(request.Amounts) > maxAmounts {
		return nil, status.Errorf(codes.InvalidArgument, "amounts: %d are too many; send at most %d", len(request.Amounts), maxAmounts)
	}
	reply := &boutiquev1.ConvertResponse{Amounts: make([]*boutiquev1.Money, len(request.Amounts))}
	for i, amount := range request.Amounts {
		converted, err := convert(amount, request.ToCurrency)
		switch {
		case errors.Is(err, money.ErrRange):
			return nil, status.Errorf(codes.OutOfRange, "amounts[%d]: %v", i, err)
		case err != nil:
			return nil, status.Errorf(codes.InvalidArgument, "amounts[%d]: %v", i, err)
		}
		reply.Amounts[i] = converted
	}
	return reply, nil
}

func convert(amount *boutiquev1.Money, to string) (*boutiquev1.Money, error) {
	if err := money.Check(amount); err != nil {
		return nil, err
	}
	from, target := perEuro[amount.Currency], perEuro[to]
	if from == nil {
		return nil, unknown(amount.Currency)
	}
	if target == nil {
		return nil, unknown(to)
	}
	nanos := money.ToNanos(amount)
	return money.FromNanos(to, money.DivideHalfEven(nanos.Mul(nanos, target), from))
}

func unknown(code string) error {
	return fmt.Errorf("currency %q has no rate here; ListCurrencies names those that have", code)
}
