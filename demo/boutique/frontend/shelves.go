package frontend

import (
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/money"
	"heddle.io/heddle/demo/boutique/role"
)

// offer is a product with its price in the visitor's currency.
type offer struct {
	*boutiquev1.Product
	Shown *boutiquev1.Money
}

// offers prices products.
func (v *visit) offers(products []*boutiquev1.Product) ([]offer, error) {
	prices := make([]*boutiquev1.Money, len(products))
	for i, product := range products {
		prices[i] = product.Price
	}
	prices, err := v.convert(prices)
	if err != nil {
		return nil, err
	}
	made := make([]offer, len(products))
	for i, product := range products {
		rounded, err := money.RoundToMinor(prices[i])
		if err != nil {
			return nil, status.Errorf(codes.OutOfRange, "price of %s: %v", product.Id, err)
		}
		made[i] = offer{Product: product, Shown: rounded}
	}
	return made, nil
}

func (v *visit) home() error {
	if err := v.frame(); err != nil {
		return err
	}
	var listed *boutiquev1.ListProductsResponse
	var err error
	query := v.r.URL.Query().Get("q")
	if query == "" {
		listed, err = ask(v, "productcatalogservice ListProducts", role.CallTime, v.shop.Catalog.ListProducts, &boutiquev1.ListProductsRequest{})
	} else {
		listed, err = ask(v, "productcatalogservice SearchProducts", role.CallTime, v.shop.Catalog.SearchProducts, &boutiquev1.SearchProductsRequest{Text: query})
	}
	if status.Code(err) == codes.InvalidArgument {
		return refuse(http.StatusUnprocessableEntity, "That search is too long. Try one word.")
	}
	if err != nil {
		return err
	}
	shelf, err := v.offers(listed.Products)
	if err != nil {
		return err
	}
	v.render(http.StatusOK, "home", "Things for home and away", map[string]any{"Shelf": shelf, "Query": query, "Ad": v.ad(nil, "")})
	return nil
}

func (v *visit) product() error {
	if err := v.frame(); err != nil {
		return err
	}
	product, err := ask(v, "productcatalogservice GetProduct", role.CallTime, v.shop.Catalog.GetProduct, &boutiquev1.GetProductRequest{Id: v.r.PathValue("id")})
	if status.Code(err) == codes.NotFound {
		return refuse(http.StatusNotFound, "We do not sell that, or not any more. Have a look at what we have.")
	}
	if err != nil {
		return err
	}
	offered, err := v.offers([]*boutiquev1.Product{product})
	if err != nil {
		return err
	}
	v.render(http.StatusOK, "product", product.Name, map[string]any{
		"Offer":           offered[0],
		"Quantities":      []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10},
		"Recommendations": v.recommendations(product.Id),
		"Ad":              v.ad(product.Categories, product.Id),
	})
	return nil
}

// ad returns an advertisement for another product than the one shown, or nil,
// with a notice when adservice failed.
func (v *visit) ad(categories []string, shown string) *boutiquev1.Ad {
	reply, err := ask(v, "adservice PickAds", extraTime, v.shop.Ads.PickAds, &boutiquev1.PickAdsRequest{Categories: categories})
	if err != nil {
		v.missing("Advertisements are unavailable at the moment.", err)
		return nil
	}
	for _, ad := range reply.Ads {
		if ad.ProductId != shown {
			return ad
		}
	}
	return nil
}

// recommendations returns products that are neither in the cart nor named, or
// nil with a notice.
func (v *visit) recommendations(exclude ...string) []offer {
	for _, line := range v.cart.GetLines() {
		exclude = append(exclude, line.ProductId)
	}
	found, err := v.findRecommendations(exclude)
	if err != nil {
		v.missing("Recommendations are unavailable at the moment.", err)
		return nil
	}
	return found
}

func (v *visit) findRecommendations(exclude []string) ([]offer, error) {
	reply, err := ask(v, "recommendationservice ListRecommendations", extraTime, v.shop.Recommendations.ListRecommendations,
		&boutiquev1.ListRecommendationsRequest{ShopperId: v.shopper, ExcludeProductIds: exclude})
	if err != nil {
		return nil, err
	}
	v.ledger.Add(reply.Hops...)
	var products []*boutiquev1.Product
	for _, id := range reply.ProductIds {
		product, err := ask(v, "productcatalogservice GetProduct", extraTime, v.shop.Catalog.GetProduct, &boutiquev1.GetProductRequest{Id: id})
		if err != nil {
			return nil, err
		}
		products = append(products, product)
	}
	return v.offers(products)
}
