// Package recommendation is the role that suggests products.
package recommendation

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/identity"
	"heddle.io/heddle/demo/boutique/role"
)

// Name and Port are the role's name and the TCP port it listens on by default.
const (
	Name = "recommendationservice"
	Port = 8080
)

const (
	defaultLimit = 4
	maxLimit     = 12
	maxExcluded  = 100
)

// Service implements boutiquev1.RecommendationServiceServer.
type Service struct {
	boutiquev1.UnimplementedRecommendationServiceServer
	// Catalog is asked for all products.
	Catalog boutiquev1.ProductCatalogServiceClient
	// Chooser picks among them.
	Chooser *role.Chooser
}

// Run serves the role until ctx ends. The catalogue's address is
// PRODUCT_CATALOG_SERVICE_ADDR.
func Run(ctx context.Context, env role.Env) error {
	chooser, err := env.Chooser()
	if err != nil {
		return err
	}
	dial := role.NewDialer(env, Name)
	defer dial.Close()
	service := &Service{
		Catalog: boutiquev1.NewProductCatalogServiceClient(dial.To("productcatalogservice", "PRODUCT_CATALOG_SERVICE_ADDR", "productcatalogservice:3550")),
		Chooser: chooser,
	}
	if err := dial.Err(); err != nil {
		return err
	}
	return role.ServeGRPC(ctx, env, Name, Port, func(server *grpc.Server) {
		boutiquev1.RegisterRecommendationServiceServer(server, service)
	})
}

// ListRecommendations returns random products that are not excluded.
func (s *Service) ListRecommendations(ctx context.Context, request *boutiquev1.ListRecommendationsRequest) (*boutiquev1.ListRecommendationsResponse, error) {
	limit := int(request.Limit)
	if limit == 0 {
		limit = defaultLimit
	}
	switch {
	case limit < 0 || limit > maxLimit:
		return nil, status.Errorf(codes.InvalidArgument, "limit: %d is not between 0 and %d", limit, maxLimit)
	case len(request.ExcludeProductIds) > maxExcluded:
		return nil, status.Errorf(codes.InvalidArgument, "exclude_product_ids: %d are too many; send at most %d", len(request.ExcludeProductIds), maxExcluded)
	}
	excluded := map[string]bool{}
	for _, id := range request.ExcludeProductIds {
		excluded[id] = true
	}

	ledger := &identity.Ledger{}
	ctx, cancel := context.WithTimeout(identity.WithLedger(ctx, ledger), role.CallTime)
	defer cancel()
	listed, err := s.Catalog.ListProducts(ctx, &boutiquev1.ListProductsRequest{})
	if err != nil {
		return nil, status.Errorf(status.Code(err), "productcatalogservice ListProducts: %s", status.Convert(err).Message())
	}
	reply := &boutiquev1.ListRecommendationsResponse{Hops: ledger.Hops()}
	for _, i := range s.Chooser.Order(len(listed.Products)) {
		if id := listed.Products[i].Id; !excluded[id] && len(reply.ProductIds) < limit {
			reply.ProductIds = append(reply.ProductIds, id)
		}
	}
	return reply, nil
}
