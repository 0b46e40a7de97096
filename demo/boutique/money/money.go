// Package money calculates with exact amounts: no binary fractions, no silent
// overflow. An amount is units and billionths of a currency, as in
// boutiquev1.Money.
package money

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"heddle.io/heddle/demo/boutique/boutiquev1"
)

// Billion is how many nanos make a unit.
const Billion = 1_000_000_000

var (
	// ErrInvalid is returned for an amount that breaks the rules of
	// boutiquev1.Money.
	ErrInvalid = errors.New("not a valid amount")
	// ErrCurrencies is returned when two currencies meet in one calculation.
	ErrCurrencies = errors.New("amounts of different currencies")
	// ErrRange is returned when a result does not fit into units and nanos.
	ErrRange = errors.New("amount out of range")
)

// New returns an amount; nanos has the sign of units.
func New(currency string, units int64, nanos int32) *boutiquev1.Money {
	return &boutiquev1.Money{Currency: currency, Units: units, Nanos: nanos}
}

// Check returns nil when m may be calculated with, else ErrInvalid with what
// is wrong.
func Check(m *boutiquev1.Money) error {
	switch {
	case m == nil:
		return fmt.Errorf("%w: it is missing", ErrInvalid)
	case len(m.Currency) != 3 || strings.Trim(m.Currency, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "":
		return fmt.Errorf("%w: currency %q is not three capital letters", ErrInvalid, m.Currency)
	case m.Nanos <= -Billion || m.Nanos >= Billion:
		return fmt.Errorf("%w: %d nanos are a unit or more", ErrInvalid, m.Nanos)
	case m.Units > 0 && m.Nanos < 0, m.Units < 0 && m.Nanos > 0:
		return fmt.Errorf("%w: %d units and %d nanos have opposite signs", ErrInvalid, m.Units, m.Nanos)
	}
	return nil
}

// ToNanos returns the amount in billionths. m must have passed Check.
func ToNanos(m *boutiquev1.Money) *big.Int {
	total := big.NewInt(m.Units)
	total.Mul(total, big.NewInt(Billion))
	return total.Add(total, big.NewInt(int64(m.Nanos)))
}

// FromNanos is the inverse of ToNanos; ErrRange when the units exceed 64 bits.
func FromNanos(currency string, nanos *big.Int) (*boutiquev1.Money, error) {
	units, rest := new(big.Int).QuoRem(nanos, big.NewInt(Billion), new(big.Int))
	if !units.IsInt64() {
		return nil, fmt.Errorf("%w: %s units of %s do not fit 64 bits", ErrRange, units, currency)
	}
	return New(currency, units.Int64(), int32(rest.Int64())), nil
}

// Add returns a + b. Both must have passed Check.
func Add(a, b *boutiquev1.Money) (*boutiquev1.Money, error) {
	if a.Currency != b.Currency {
		return nil, fmt.Errorf("%w: %s and %s", ErrCurrencies, a.Currency, b.Currency)
	}
	return FromNanos(a.Currency, new(big.Int).Add(ToNanos(a), ToNanos(b)))
}

// Times returns m taken count times. m must have passed Check.
func Times(m *boutiquev1.Money, count int32) (*boutiquev1.Money, error) {
	return FromNanos(m.Currency, new(big.Int).Mul(ToNanos(m), big.NewInt(int64(count))))
}

// MinorDigits says how many decimals a price in the currency has: none for the
// yen, two for all others the shop knows.
func MinorDigits(currency string) int {
	if currency == "JPY" {
		return 0
	}
	return 2
}

// RoundToMinor rounds to what can be paid in the currency, half to even. Prices
// are rounded piece by piece, before they are added, so that the total a
// shopper is charged is the sum of the prices that were shown.
func RoundToMinor(m *boutiquev1.Money) (*boutiquev1.Money, error) {
	step := int64(Billion)
	for range MinorDigits(m.Currency) {
		step /= 10
	}
	steps := DivideHalfEven(ToNanos(m), big.NewInt(step))
	return FromNanos(m.Currency, steps.Mul(steps, big.NewInt(step)))
}

// DivideHalfEven returns the integer nearest to a / b, the even one of two
// equally near. b must be positive.
func DivideHalfEven(a, b *big.Int) *big.Int {
	// Euclidean division keeps the remainder in [0, b), whatever a's sign.
	quotient, rest := new(big.Int).DivMod(a, b, new(big.Int))
	switch rest.Lsh(rest, 1).Cmp(b) {
	case 1:
		quotient.Add(quotient, big.NewInt(1))
	case 0:
		if quotient.Bit(0) == 1 {
			quotient.Add(quotient, big.NewInt(1))
		}
	}
	return quotient
}

var symbols = map[string]string{
	"AUD": "A$", "BRL": "R$", "CAD": "C$", "CHF": "CHF ", "EUR": "€",
	"GBP": "£", "INR": "₹", "JPY": "¥", "SEK": "kr ", "USD": "$",
}

// Format writes an amount for people, such as "€12.30" or "¥1,800", rounded to
// the currency's decimals. An invalid amount is written "–".
func Format(m *boutiquev1.Money) string {
	if Check(m) != nil {
		return "–"
	}
	rounded, err := RoundToMinor(m)
	if err != nil {
		return "–"
	}
	symbol, known := symbols[m.Currency]
	if !known {
		symbol = m.Currency + " "
	}
	sign := ""
	if rounded.Units < 0 || rounded.Nanos < 0 {
		sign = "−"
	}
	digits := strings.TrimPrefix(strconv.FormatInt(rounded.Units, 10), "-")
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if places := MinorDigits(m.Currency); places > 0 {
		fraction := fmt.Sprintf("%09d", max(rounded.Nanos, -rounded.Nanos))
		digits += "." + fraction[:places]
	}
	return sign + symbol + digits
}
