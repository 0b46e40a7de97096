package frontend

import (
	"fmt"
	"net/http"
	"net/mail"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
)

// field is one input of the checkout form.
type field struct {
	Name, Label, Value string
	// Autocomplete and Type are HTML's.
	Autocomplete, Type string
	// Wide fields take the form's whole width.
	Wide bool
	// Problem says what is wrong with the value, "" when nothing is.
	Problem string
}

// form is the checkout form in the order of its fields. Their names are Online
// Boutique's, so that load tests written for it work here.
type form []*field

func (v *visit) demoForm() form {
	return form{
		{Name: "email", Label: "Email", Value: "anna.weaver@example.com", Autocomplete: "email", Type: "email", Wide: true},
		{Name: "street_address", Label: "Street and number", Value: "12 Shuttle Row", Autocomplete: "street-address", Type: "text", Wide: true},
		{Name: "zip_code", Label: "Postal code", Value: "HX1 5AB", Autocomplete: "postal-code", Type: "text"},
		{Name: "city", Label: "City", Value: "Halifax", Autocomplete: "address-level2", Type: "text"},
		{Name: "state", Label: "Region", Value: "West Yorkshire", Autocomplete: "address-level1", Type: "text"},
		{Name: "country", Label: "Country", Value: "United Kingdom", Autocomplete: "country-name", Type: "text"},
		{Name: "credit_card_number", Label: "Card number", Value: "4242 4242 4242 4242", Autocomplete: "cc-number", Type: "text", Wide: true},
		{Name: "credit_card_expiration_month", Label: "Expiry month", Value: "6", Autocomplete: "cc-exp-month", Type: "text"},
		{Name: "credit_card_expiration_year", Label: "Expiry year", Value: strconv.Itoa(v.shop.Now().Year() + 2), Autocomplete: "cc-exp-year", Type: "text"},
		{Name: "credit_card_cvv", Label: "Security code", Value: "123", Autocomplete: "cc-csc", Type: "text"},
	}
}

func (f form) named(name string) *field {
	for _, field := range f {
		if field.Name == name {
			return field
		}
	}
	panic("frontend: the checkout form has no field " + name)
}

// Problems counts the fields that need a correction.
func (f form) Problems() int {
	count := 0
	for _, field := range f {
		if field.Problem != "" {
			count++
		}
	}
	return count
}

// maxField bounds a field of the form in bytes.
const maxField = 120

// fill takes the posted values and notes what is wrong with them. Whether the
// card is good is for paymentservice to say.
func (f form) fill(r *http.Request) *boutiquev1.PlaceOrderRequest {
	for _, field := range f {
		field.Value = strings.TrimSpace(r.PostFormValue(field.Name))
		switch {
		case field.Value == "":
			field.Problem = field.Label + " is needed."
		case len(field.Value) > maxField:
			field.Problem = fmt.Sprintf("%s must be shorter than %d characters.", field.Label, maxField)
		}
	}
	if email := f.named("email"); email.Problem == "" {
		if parsed, err := mail.ParseAddress(email.Value); err != nil || parsed.Address != email.Value {
			email.Problem = "This is not an email address. It should look like anna@example.com."
		}
	}
	return &boutiquev1.PlaceOrderRequest{
		Email: f.named("email").Value,
		Address: &boutiquev1.Address{
			Street: f.named("street_address").Value, City: f.named("city").Value, Region: f.named("state").Value,
			PostalCode: f.named("zip_code").Value, Country: f.named("country").Value,
		},
		Card: &boutiquev1.Card{
			Number:       f.named("credit_card_number").Value,
			SecurityCode: f.named("credit_card_cvv").Value,
			ExpiryMonth:  f.named("credit_card_expiration_month").whole(1, 12),
			ExpiryYear:   f.named("credit_card_expiration_year").whole(2000, 9999),
		},
	}
}

// whole reads a whole number between two others, or notes the problem.
func (f *field) whole(lowest, highest int32) int32 {
	number, err := strconv.ParseInt(f.Value, 10, 32)
	if f.Problem == "" && (err != nil || number < int64(lowest) || number > int64(highest)) {
		f.Problem = fmt.Sprintf("%s must be a number between %d and %d.", f.Label, lowest, highest)
	}
	return int32(number)
}

func (v *visit) checkoutPage() error {
	if err := v.frame(); err != nil {
		return err
	}
	if len(v.cart.Lines) == 0 {
		return v.redirect("/cart")
	}
	return v.showForm(http.StatusOK, v.demoForm(), "")
}

func (v *visit) showForm(code int, form form, refused string) error {
	basket, err := v.basket()
	if err != nil {
		return err
	}
	v.render(code, "checkout", "Checkout", map[string]any{"Form": form, "Basket": basket, "Refused": refused})
	return nil
}

func (v *visit) placeOrder() error {
	if err := v.frame(); err != nil {
		return err
	}
	if len(v.cart.Lines) == 0 {
		return refuse(http.StatusConflict, "There is nothing in your cart to buy. If you have just placed an order, it was placed once.")
	}
	form := v.demoForm()
	request := form.fill(v.r)
	if form.Problems() > 0 {
		return v.showForm(http.StatusUnprocessableEntity, form, "")
	}
	request.ShopperId, request.Currency = v.shopper, v.currency
	reply, err := ask(v, "checkoutservice PlaceOrder", orderTime, v.shop.Checkout.PlaceOrder, request)
	switch status.Code(err) {
	case codes.OK:
	case codes.InvalidArgument:
		// "checkoutservice PlaceOrder: paymentservice Charge: card: it expired…":
		// the shopper needs the end only.
		problem := status.Convert(err).Message()
		if _, card, found := strings.Cut(problem, "card: "); found {
			form.named("credit_card_number").Problem = "The card was refused: " + card + "."
		}
		return v.showForm(http.StatusUnprocessableEntity, form, problem)
	case codes.FailedPrecondition:
		return refuse(http.StatusConflict, "The order could not be placed and nothing was charged: %s.", status.Convert(err).Message())
	default:
		return err
	}
	v.ledger.Add(reply.Hops...)
	if !reply.ConfirmationSent {
		v.notices = append(v.notices, "We could not send the confirmation email. Please note the order number.")
	}
	var bought []string
	for _, line := range reply.Order.GetLines() {
		bought = append(bought, line.ProductId)
	}
	v.cart = &boutiquev1.Cart{}
	v.render(http.StatusOK, "order", "Thank you", map[string]any{
		"Order": reply.Order, "Email": request.Email, "Recommendations": v.recommendations(bought...),
	})
	return nil
}
