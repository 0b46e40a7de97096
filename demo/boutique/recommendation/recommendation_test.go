package recommendation

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/role"
)

type catalog struct {
	boutiquev1.ProductCatalogServiceClient
	err error
}

func (c catalog) ListProducts(context.Context, *boutiquev1.ListProductsRequest, ...grpc.CallOption) (*boutiquev1.ListProductsResponse, error) {
	reply := &boutiquev1.ListProductsResponse{}
	for _, id := range strings.Split("abcdefgh", "") {
		reply.Products = append(reply.Products, &boutiquev1.Product{Id: id})
	}
	return reply, c.err
}

func service(t *testing.T, err error) *Service {
	t.Helper()
	chooser, seedErr := role.Env{Random: strings.NewReader(strings.Repeat("seed", 8))}.Chooser()
	if seedErr != nil {
		t.Fatal(seedErr)
	}
	return &Service{Catalog: catalog{err: err}, Chooser: chooser}
}

func TestRecommendationsAreDistinctAndNeverExcluded(t *testing.T) {
	s := service(t, nil)
	for range 200 {
		reply, err := s.ListRecommendations(context.Background(), &boutiquev1.ListRecommendationsRequest{ExcludeProductIds: []string{"a", "c", "h", "zebra"}})
		if err != nil || len(reply.ProductIds) != 4 {
			t.Fatalf("got %v, %v; want 4", reply, err)
		}
		slices.Sort(reply.ProductIds)
		if len(slices.Compact(reply.ProductIds)) != 4 || strings.ContainsAny(strings.Join(reply.ProductIds, ""), "ach") {
			t.Fatalf("recommended %v", reply.ProductIds)
		}
	}
	reply, err := s.ListRecommendations(context.Background(), &boutiquev1.ListRecommendationsRequest{ExcludeProductIds: strings.Split("abcdefg", "")})
	if err != nil || !slices.Equal(reply.ProductIds, []string{"h"}) {
		t.Errorf("all but h excluded: %v, %v", reply, err)
	}
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		request *boutiquev1.ListRecommendationsRequest
		fails   error
		want    codes.Code
	}{
		"negative limit": {&boutiquev1.ListRecommendationsRequest{Limit: -1}, nil, codes.InvalidArgument},
		"large limit":    {&boutiquev1.ListRecommendationsRequest{Limit: 13}, nil, codes.InvalidArgument},
		"long exclusion": {&boutiquev1.ListRecommendationsRequest{ExcludeProductIds: make([]string, 101)}, nil, codes.InvalidArgument},
		"no catalogue":   {&boutiquev1.ListRecommendationsRequest{}, status.Error(codes.PermissionDenied, "RBAC: access denied"), codes.PermissionDenied},
	} {
		if _, err := service(t, c.fails).ListRecommendations(context.Background(), c.request); status.Code(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}
