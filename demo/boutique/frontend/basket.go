package frontend

import (
	"net/http"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/money"
	"heddle.io/heddle/demo/boutique/role"
)

// maxPieces is how many pieces of a product can be added at a time.
const maxPieces = 10

// basket is the cart with its prices.
type basket struct {
	Lines    []basketLine
	Shipping *boutiquev1.Money
	Total    *boutiquev1.Money
}

type basketLine struct {
	offer
	Quantity int32
	Cost     *boutiquev1.Money
}

// basket prices the cart, which frame must have read.
func (v *visit) basket() (*basket, error) {
	if len(v.cart.Lines) == 0 {
		return &basket{}, nil
	}
	var products []*boutiquev1.Product
	var quantities []int32
	for _, line := range v.cart.Lines {
		product, err := ask(v, "productcatalogservice GetProduct", role.CallTime, v.shop.Catalog.GetProduct, &boutiquev1.GetProductRequest{Id: line.ProductId})
		if status.Code(err) == codes.NotFound {
			v.missing("Something in the cart is no longer sold. Empty the cart to go on.", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		products, quantities = append(products, product), append(quantities, line.Quantity)
	}
	quoted, err := ask(v, "shippingservice Quote", role.CallTime, v.shop.Shipping.Quote, &boutiquev1.QuoteRequest{Lines: v.cart.Lines})
	if err != nil {
		return nil, err
	}
	// The shipping travels as a product, to be converted in the same call.
	priced, err := v.offers(append(products, &boutiquev1.Product{Id: "shipping", Price: quoted.Cost}))
	if err != nil {
		return nil, err
	}
	made := &basket{Shipping: priced[len(products)].Shown}
	made.Total = made.Shipping
	for i, quantity := range quantities {
		line := basketLine{offer: priced[i], Quantity: quantity}
		line.Cost, err = money.Times(line.Shown, quantity)
		if err == nil {
			made.Total, err = money.Add(made.Total, line.Cost)
		}
		if err != nil {
			return nil, status.Errorf(codes.OutOfRange, "add up the cart: %v", err)
		}
		made.Lines = append(made.Lines, line)
	}
	return made, nil
}

func (v *visit) cartPage() error {
	if err := v.frame(); err != nil {
		return err
	}
	basket, err := v.basket()
	if err != nil {
		return err
	}
	v.render(http.StatusOK, "cart", "Your cart", map[string]any{"Basket": basket, "Recommendations": v.recommendations()})
	return nil
}

func (v *visit) addToCart() error {
	quantity, err := strconv.Atoi(v.r.PostFormValue("quantity"))
	if err != nil || quantity < 1 || quantity > maxPieces {
		return refuse(http.StatusUnprocessableEntity, "The quantity must be a whole number between 1 and %d.", maxPieces)
	}
	product, err := ask(v, "productcatalogservice GetProduct", role.CallTime, v.shop.Catalog.GetProduct, &boutiquev1.GetProductRequest{Id: v.r.PostFormValue("product_id")})
	if status.Code(err) == codes.NotFound {
		return refuse(http.StatusNotFound, "We do not sell that, or not any more, so it was not put into the cart.")
	}
	if err != nil {
		return err
	}
	_, err = ask(v, "cartservice AddItem", role.CallTime, v.shop.Cart.AddItem, &boutiquev1.AddItemRequest{ShopperId: v.shopper, ProductId: product.Id, Quantity: int32(quantity)})
	if status.Code(err) == codes.FailedPrecondition {
		return refuse(http.StatusConflict, "The cart cannot hold that much. Buy what is in it, or empty it first.")
	}
	if err != nil {
		return err
	}
	return v.redirect("/cart")
}

func (v *visit) emptyCart() error {
	if _, err := ask(v, "cartservice EmptyCart", role.CallTime, v.shop.Cart.EmptyCart, &boutiquev1.EmptyCartRequest{ShopperId: v.shopper}); err != nil {
		return err
	}
	return v.redirect("/cart")
}
