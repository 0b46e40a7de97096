package money

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"heddle.io/heddle/demo/boutique/boutiquev1"
)

func TestCheckRefusesWhatCannotBeCalculatedWith(t *testing.T) {
	for name, m := range map[string]*boutiquev1.Money{
		"missing":           nil,
		"no currency":       New("", 1, 0),
		"lower case":        New("usd", 1, 0),
		"letters beyond A":  New("ÄB", 1, 0),
		"a billion nanos":   New("USD", 1, Billion),
		"opposite signs":    New("USD", 1, -1),
		"opposite signs, -": New("USD", -1, 1),
	} {
		if err := Check(m); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: Check returned %v, want ErrInvalid", name, err)
		}
	}
	if err := Check(New("USD", math.MinInt64, -999_999_999)); err != nil {
		t.Errorf("the smallest amount was refused: %v", err)
	}
}

func TestAdditionIsExactAndReversible(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		a, b := arbitrary(random), arbitrary(random)
		sum, err := Add(a, b)
		want := new(big.Int).Add(ToNanos(a), ToNanos(b))
		if errors.Is(err, ErrRange) {
			continue
		}
		if err != nil || Check(sum) != nil || ToNanos(sum).Cmp(want) != 0 {
			t.Fatalf("%v + %v = %v, %v; want %v nanos", a, b, sum, err, want)
		}
		negative, _ := Times(b, -1)
		back, err := Add(sum, negative)
		if err != nil || ToNanos(back).Cmp(ToNanos(a)) != 0 {
			t.Fatalf("(%v + %v) - %v = %v, %v", a, b, b, back, err)
		}
	}
}

func arbitrary(random *rand.Rand) *boutiquev1.Money {
	units := random.Int64() >> random.UintN(62)
	nanos := random.Int32N(Billion)
	if random.UintN(2) == 0 {
		return New("USD", -units, -nanos)
	}
	return New("USD", units, nanos)
}

func TestOverflowAndMixedCurrenciesAreErrors(t *testing.T) {
	if _, err := Add(New("USD", math.MaxInt64, 999_999_999), New("USD", 0, 1)); !errors.Is(err, ErrRange) {
		t.Errorf("overflow: %v", err)
	}
	if _, err := Times(New("USD", math.MaxInt64/2, 0), 3); !errors.Is(err, ErrRange) {
		t.Errorf("multiplied overflow: %v", err)
	}
	if _, err := Add(New("USD", 1, 0), New("EUR", 1, 0)); !errors.Is(err, ErrCurrencies) {
		t.Errorf("mixed: %v", err)
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		in   *boutiquev1.Money
		want string
	}{
		{New("USD", 0, 0), "$0.00"},
		{New("USD", 12, 300_000_000), "$12.30"},
		{New("EUR", 1234567, 5_000_000), "€1,234,567.00"}, // half to even
		{New("EUR", 0, 15_000_000), "€0.02"},
		{New("EUR", 0, 999_000_000), "€1.00"},
		{New("JPY", 1800, 400_000_000), "¥1,800"},
		{New("GBP", -3, -500_000_000), "−£3.50"},
		{New("USD", 0, -10_000_000), "−$0.01"},
		{New("XTS", 999, 0), "XTS 999.00"},
		{New("USD", math.MinInt64, 0), "−$9,223,372,036,854,775,808.00"},
		{nil, "–"},
	} {
		if got := Format(c.in); got != c.want {
			t.Errorf("Format(%v) = %q, want %q", c.in, got, c.want)
		}
	}
}
