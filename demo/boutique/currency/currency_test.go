package currency

import (
	"context"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/money"
)

func TestConversionProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 11))
	codes := slices.Sorted(maps.Keys(perEuro))
	for range 20000 {
		from, to := codes[random.IntN(len(codes))], codes[random.IntN(len(codes))]
		amount := money.New(from, random.Int64()>>(16+random.UintN(47)), random.Int32N(money.Billion))
		if random.UintN(2) == 0 {
			amount.Units, amount.Nanos = -amount.Units, -amount.Nanos
		}
		got, err := convert(amount, to)
		if err != nil {
			t.Fatalf("convert %v to %s: %v", amount, to, err)
		}
		if err := money.Check(got); err != nil || got.Currency != to {
			t.Fatalf("convert %v to %s = %v: %v", amount, to, got, err)
		}
		if from == to && money.ToNanos(got).Cmp(money.ToNanos(amount)) != 0 {
			t.Fatalf("%v changed to %v in its own currency", amount, got)
		}

		// Exactness: |got*rate(from) - amount*rate(to)| is at most rate(from)/2.
		left := new(big.Int).Mul(money.ToNanos(got), perEuro[from])
		right := new(big.Int).Mul(money.ToNanos(amount), perEuro[to])
		difference := left.Sub(left, right)
		if difference.Abs(difference).Lsh(difference, 1).Cmp(perEuro[from]) > 0 {
			t.Fatalf("convert %v to %s = %v is not the nearest billionth", amount, to, got)
		}

		negative, err := convert(money.New(from, -amount.Units, -amount.Nanos), to)
		if err != nil || money.ToNanos(negative).Cmp(new(big.Int).Neg(money.ToNanos(got))) != 0 {
			t.Fatalf("the negative of %v is %v, not of %v: %v", amount, negative, got, err)
		}

		// There and back: off by no more than both roundings allow.
		back, err := convert(got, from)
		if err != nil {
			t.Fatal(err)
		}
		off := new(big.Int).Sub(money.ToNanos(back), money.ToNanos(amount))
		limit := new(big.Int).Div(perEuro[from], perEuro[to])
		if off.Abs(off).Cmp(limit.Add(limit, big.NewInt(1))) > 0 {
			t.Fatalf("%v to %v and back is %v", amount, got, back)
		}
	}
}

func TestConvertRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		request *boutiquev1.ConvertRequest
		want    codes.Code
	}{
		"unknown source": {&boutiquev1.ConvertRequest{ToCurrency: "EUR", Amounts: []*boutiquev1.Money{money.New("XTS", 1, 0)}}, codes.InvalidArgument},
		"unknown target": {&boutiquev1.ConvertRequest{ToCurrency: "euro", Amounts: []*boutiquev1.Money{money.New("EUR", 1, 0)}}, codes.InvalidArgument},
		"missing amount": {&boutiquev1.ConvertRequest{ToCurrency: "EUR", Amounts: []*boutiquev1.Money{nil}}, codes.InvalidArgument},
		"mixed signs":    {&boutiquev1.ConvertRequest{ToCurrency: "EUR", Amounts: []*boutiquev1.Money{money.New("EUR", 1, -1)}}, codes.InvalidArgument},
		"too large":      {&boutiquev1.ConvertRequest{ToCurrency: "INR", Amounts: []*boutiquev1.Money{money.New("EUR", math.MaxInt64, 0)}}, codes.OutOfRange},
		"too many":       {&boutiquev1.ConvertRequest{ToCurrency: "EUR", Amounts: make([]*boutiquev1.Money, maxAmounts+1)}, codes.InvalidArgument},
	} {
		if _, err := (Service{}).Convert(context.Background(), c.request); status.Code(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}
