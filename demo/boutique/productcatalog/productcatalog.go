// Package productcatalog is the role that knows what the shop sells.
package productcatalog

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/money"
	"heddle.io/heddle/demo/boutique/role"
)

// Name and Port are the role's name and the TCP port it listens on by default.
const (
	Name = "productcatalogservice"
	Port = 3550
)

//go:embed products.json
var productsJSON []byte

// Service implements boutiquev1.ProductCatalogServiceServer.
type Service struct {
	boutiquev1.UnimplementedProductCatalogServiceServer
	products []*boutiquev1.Product
}

// New returns the service with the embedded products.
func New() (*Service, error) {
	var listed []struct {
		ID, Name, Tagline, Description string
		PriceCents                     int64
		Categories                     []string
	}
	if err := json.Unmarshal(productsJSON, &listed); err != nil {
		return nil, fmt.Errorf("%s: products.json: %w", Name, err)
	}
	service := &Service{}
	for _, p := range listed {
		service.products = append(service.products, &boutiquev1.Product{
			Id: p.ID, Name: p.Name, Tagline: p.Tagline, Description: p.Description, Categories: p.Categories,
			Price: money.New("USD", p.PriceCents/100, int32(p.PriceCents%100)*(money.Billion/100)),
		})
	}
	return service, nil
}

// Run serves the role until ctx ends.
func Run(ctx context.Context, env role.Env) error {
	service, err := New()
	if err != nil {
		return err
	}
	return role.ServeGRPC(ctx, env, Name, Port, func(server *grpc.Server) {
		boutiquev1.RegisterProductCatalogServiceServer(server, service)
	})
}

// ListProducts returns everything on the shelf.
func (s *Service) ListProducts(context.Context, *boutiquev1.ListProductsRequest) (*boutiquev1.ListProductsResponse, error) {
	return &boutiquev1.ListProductsResponse{Products: s.products}, nil
}

// GetProduct returns one product.
func (s *Service) GetProduct(_ context.Context, request *boutiquev1.GetProductRequest) (*boutiquev1.Product, error) {
	i := slices.IndexFunc(s.products, func(p *boutiquev1.Product) bool { return p.Id == request.Id })
	if i < 0 {
		return nil, status.Errorf(codes.NotFound, "the shop has no product %.60q", request.Id)
	}
	return s.products[i], nil
}

// SearchProducts returns the products that speak of the text.
func (s *Service) SearchProducts(_ context.Context, request *boutiquev1.SearchProductsRequest) (*boutiquev1.ListProductsResponse, error) {
	if len(request.Text) > 200 {
		return nil, status.Errorf(codes.InvalidArgument, "text: %d bytes are too long; send at most 200", len(request.Text))
	}
	text := strings.ToLower(request.Text)
	reply := &boutiquev1.ListProductsResponse{}
	for _, p := range s.products {
		if strings.Contains(strings.ToLower(p.Name+"\n"+p.Description), text) {
			reply.Products = append(reply.Products, p)
		}
	}
	return reply, nil
}
