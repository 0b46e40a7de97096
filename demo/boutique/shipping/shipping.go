// Package shipping is the role that prices parcels and sends them.
package shipping

import (
	"context"
	"io"
	"log/slog"
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
	Name = "shippingservice"
	Port = 50051
)

// A parcel costs a base price and a little more per piece, in US cents.
const (
	baseCents  = 499
	pieceCents = 110
)

// maxPieces is the cart's own limit: 40 lines of 99 pieces.
const maxPieces = 40 * 99

// Service implements boutiquev1.ShippingServiceServer.
type Service struct {
	boutiquev1.UnimplementedShippingServiceServer
	// Random is read for tracking identifiers.
	Random io.Reader
	// Log receives one line per parcel.
	Log *slog.Logger
}

// Run serves the role until ctx ends.
func Run(ctx context.Context, env role.Env) error {
	return role.ServeGRPC(ctx, env, Name, Port, func(server *grpc.Server) {
		boutiquev1.RegisterShippingServiceServer(server, &Service{Random: env.Random, Log: env.Log})
	})
}

// Quote prices the parcel; no pieces cost nothing.
func (s *Service) Quote(_ context.Context, request *boutiquev1.QuoteRequest) (*boutiquev1.QuoteResponse, error) {
	pieces, err := count(request.Lines)
	if err != nil {
		return nil, err
	}
	var cents int64
	if pieces > 0 {
		cents = baseCents + pieceCents*pieces
	}
	return &boutiquev1.QuoteResponse{Cost: money.New("USD", cents/100, int32(cents%100)*(money.Billion/100))}, nil
}

// Ship sends the parcel.
func (s *Service) Ship(_ context.Context, request *boutiquev1.ShipRequest) (*boutiquev1.ShipResponse, error) {
	pieces, err := count(request.Lines)
	if err != nil {
		return nil, err
	}
	if pieces == 0 {
		return nil, status.Error(codes.InvalidArgument, "lines: there is nothing to ship")
	}
	address := request.Address
	if strings.TrimSpace(address.GetStreet()) == "" || strings.TrimSpace(address.GetCity()) == "" || strings.TrimSpace(address.GetCountry()) == "" {
		return nil, status.Error(codes.InvalidArgument, "address: street, city and country are needed to deliver a parcel")
	}
	tracking, err := role.Number(s.Random, "TRK", 3)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "%v", err)
	}
	s.Log.Info("parcel sent", "tracking", tracking, "pieces", pieces, "country", address.Country)
	return &boutiquev1.ShipResponse{TrackingId: tracking}, nil
}

func count(lines []*boutiquev1.CartLine) (int64, error) {
	var pieces int64
	for i, line := range lines {
		if line.GetQuantity() < 1 {
			return 0, status.Errorf(codes.InvalidArgument, "lines[%d].quantity: %d is less than 1", i, line.GetQuantity())
		}
		pieces += int64(line.Quantity)
	}
	if pieces > maxPieces {
		return 0, status.Errorf(codes.InvalidArgument, "lines: %d pieces are more than the %d a parcel holds; order in parts", pieces, maxPieces)
	}
	return pieces, nil
}
