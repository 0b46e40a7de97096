// Package ad is the role that picks advertisements.
package ad

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/role"
)

// Name and Port are the role's name and the TCP port it listens on by default.
const (
	Name = "adservice"
	Port = 9555
)

const maxCategories = 20

// board holds the advertisements of each category.
var board = map[string][]*boutiquev1.Ad{
	"textiles":    {{Text: "Evenings are getting longer: a Harbour blanket, woven from undyed wool.", ProductId: "wool-blanket"}},
	"kitchen":     {{Text: "The Rainy Day teapot pours six cups and drips none.", ProductId: "rainy-teapot"}, {Text: "Flour belongs on the apron: heavy linen, two deep pockets.", ProductId: "linen-apron"}},
	"garden":      {{Text: "Two litres, no leaks: the tin watering can.", ProductId: "watering-can"}, {Text: "A fern asks for little and gives back a lot.", ProductId: "potted-fern"}},
	"accessories": {{Text: "Saffron goes with everything grey about November.", ProductId: "saffron-scarf"}, {Text: "One rucksack from Monday to Sunday.", ProductId: "fell-rucksack"}},
	"lighting":    {{Text: "Bend it, turn it, read on: the Heron lamp.", ProductId: "heron-lamp"}},
	"home":        {{Text: "Cedar, smoke and forty quiet hours of light.", ProductId: "cedar-candle"}, {Text: "A clock that lets Sunday take its time.", ProductId: "sunday-clock"}},
}

// everything is the whole board in a fixed order.
var everything = func() []*boutiquev1.Ad {
	var all []*boutiquev1.Ad
	for _, category := range []string{"textiles", "kitchen", "garden", "accessories", "lighting", "home"} {
		all = append(all, board[category]...)
	}
	return all
}()

// Service implements boutiquev1.AdServiceServer.
type Service struct {
	boutiquev1.UnimplementedAdServiceServer
	// Chooser picks among all when no category fits.
	Chooser *role.Chooser
}

// Run serves the role until ctx ends.
func Run(ctx context.Context, env role.Env) error {
	chooser, err := env.Chooser()
	if err != nil {
		return err
	}
	return role.ServeGRPC(ctx, env, Name, Port, func(server *grpc.Server) {
		boutiquev1.RegisterAdServiceServer(server, &Service{Chooser: chooser})
	})
}

// PickAds returns the advertisements of the categories, or a random one when
// there are none.
func (s *Service) PickAds(_ context.Context, request *boutiquev1.PickAdsRequest) (*boutiquev1.PickAdsResponse, error) {
	if len(request.Categories) > maxCategories {
		return nil, status.Errorf(codes.InvalidArgument, "categories: %d are too many; send at most %d", len(request.Categories), maxCategories)
	}
	reply := &boutiquev1.PickAdsResponse{}
	picked := map[string]bool{}
	for _, category := range request.Categories {
		category = strings.ToLower(category)
		if !picked[category] {
			picked[category] = true
			reply.Ads = append(reply.Ads, board[category]...)
		}
	}
	if len(reply.Ads) == 0 {
		reply.Ads = append(reply.Ads, everything[s.Chooser.Below(len(everything))])
	}
	return reply, nil
}
