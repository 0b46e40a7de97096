package productcatalog

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/money"
)

func TestEveryProductIsComplete(t *testing.T) {
	service, err := New()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range service.products {
		if p.Id == "" || p.Name == "" || p.Tagline == "" || p.Description == "" || len(p.Categories) == 0 {
			t.Errorf("product %v lacks something", p)
		}
		if money.Check(p.Price) != nil || p.Price.Units < 1 {
			t.Errorf("product %s costs %v", p.Id, p.Price)
		}
		if seen[p.Id] {
			t.Errorf("two products are called %s", p.Id)
		}
		seen[p.Id] = true
	}
	if len(seen) < 9 {
		t.Errorf("%d products, want at least 9", len(seen))
	}
}

func TestLookups(t *testing.T) {
	service, err := New()
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if p, err := service.GetProduct(ctx, &boutiquev1.GetProductRequest{Id: "rainy-teapot"}); err != nil || p.Name != "Rainy Day Teapot" {
		t.Errorf("GetProduct = %v, %v", p, err)
	}
	for _, id := range []string{"", "RAINY-TEAPOT", "../etc", strings.Repeat("x", 1<<16)} {
		_, err := service.GetProduct(ctx, &boutiquev1.GetProductRequest{Id: id})
		if status.Code(err) != codes.NotFound || len(err.Error()) > 500 {
			t.Errorf("GetProduct(%.20q): %v", id, err)
		}
	}
	found, err := service.SearchProducts(ctx, &boutiquev1.SearchProductsRequest{Text: "TEAPOT"})
	if err != nil || len(found.Products) != 1 {
		t.Errorf("search for a teapot: %v, %v", found, err)
	}
	if all, err := service.SearchProducts(ctx, &boutiquev1.SearchProductsRequest{}); err != nil || len(all.Products) != len(service.products) {
		t.Errorf("search for nothing: %v, %v", all, err)
	}
	if _, err := service.SearchProducts(ctx, &boutiquev1.SearchProductsRequest{Text: strings.Repeat("x", 201)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("long search: %v", err)
	}
}
