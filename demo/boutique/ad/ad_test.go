package ad

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/role"
)

func TestPickAds(t *testing.T) {
	chooser, err := role.Env{Random: strings.NewReader(strings.Repeat("seed", 8))}.Chooser()
	if err != nil {
		t.Fatal(err)
	}
	service := &Service{Chooser: chooser}
	for _, c := range []struct {
		categories []string
		want       int
	}{
		{nil, 1},
		{[]string{"submarines"}, 1},
		{[]string{"garden"}, 2},
		{[]string{"Garden", "garden", "lighting"}, 3},
	} {
		reply, err := service.PickAds(context.Background(), &boutiquev1.PickAdsRequest{Categories: c.categories})
		if err != nil || len(reply.Ads) != c.want {
			t.Errorf("PickAds(%v) = %v, %v; want %d", c.categories, reply, err, c.want)
		}
	}
	if _, err := service.PickAds(context.Background(), &boutiquev1.PickAdsRequest{Categories: make([]string, 21)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("21 categories: %v", err)
	}
}
