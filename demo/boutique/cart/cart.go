// Package cart is the role that keeps what shoppers have chosen.
package cart

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/role"
)

// Name and Port are the role's name and the TCP port it listens on by default.
const (
	Name = "cartservice"
	Port = 7070
)

// Limits of one cart.
const (
	MaxQuantity = 99 // pieces of one product
	MaxLines    = 40 // different products
	maxID       = 128
)

// ErrFull is returned by a Store for an addition that would break a limit; the
// cart is as before.
var ErrFull = errors.New("the cart cannot hold that much")

// Store keeps carts: for each shopper how many pieces of which product.
type Store interface {
	// Add adds quantity pieces, all or, with ErrFull, none.
	Add(ctx context.Context, shopper, product string, quantity int32) error
	// Lines returns the cart, empty for an unknown shopper.
	Lines(ctx context.Context, shopper string) (map[string]int32, error)
	// Empty removes the cart, if there is one.
	Empty(ctx context.Context, shopper string) error
}

// Service implements boutiquev1.CartServiceServer.
type Service struct {
	boutiquev1.UnimplementedCartServiceServer
	// Store keeps the carts.
	Store Store
	// Log receives what the store could not do.
	Log *slog.Logger
}

// Run serves the role until ctx ends. Redis is reached at REDIS_ADDR; while it
// is absent, calls are answered UNAVAILABLE.
func Run(ctx context.Context, env role.Env) error {
	store := NewRedis(env.Address("REDIS_ADDR", "redis-cart:6379"))
	defer store.Close()
	return role.ServeGRPC(ctx, env, Name, Port, func(server *grpc.Server) {
		boutiquev1.RegisterCartServiceServer(server, &Service{Store: store, Log: env.Log})
	})
}

// AddItem puts more of a product into the cart.
func (s *Service) AddItem(ctx context.Context, request *boutiquev1.AddItemRequest) (*boutiquev1.Cart, error) {
	if err := errors.Join(checkID("shopper_id", request.ShopperId), checkID("product_id", request.ProductId)); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if request.Quantity < 1 || request.Quantity > MaxQuantity {
		return nil, status.Errorf(codes.InvalidArgument, "quantity: %d is not between 1 and %d", request.Quantity, MaxQuantity)
	}
	err := s.Store.Add(ctx, request.ShopperId, request.ProductId, request.Quantity)
	if errors.Is(err, ErrFull) {
		return nil, status.Errorf(codes.FailedPrecondition, "the cart holds at most %d pieces of a product and %d different products; buy or empty it first", MaxQuantity, MaxLines)
	}
	if err != nil {
		return nil, s.storeFailed("add to", err)
	}
	return s.read(ctx, request.ShopperId)
}

// GetCart returns the cart.
func (s *Service) GetCart(ctx context.Context, request *boutiquev1.GetCartRequest) (*boutiquev1.Cart, error) {
	if err := checkID("shopper_id", request.ShopperId); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return s.read(ctx, request.ShopperId)
}

// EmptyCart removes every line.
func (s *Service) EmptyCart(ctx context.Context, request *boutiquev1.EmptyCartRequest) (*boutiquev1.Cart, error) {
	if err := checkID("shopper_id", request.ShopperId); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.Store.Empty(ctx, request.ShopperId); err != nil {
		return nil, s.storeFailed("empty", err)
	}
	return &boutiquev1.Cart{ShopperId: request.ShopperId}, nil
}

func (s *Service) read(ctx context.Context, shopper string) (*boutiquev1.Cart, error) {
	lines, err := s.Store.Lines(ctx, shopper)
	if err != nil {
		return nil, s.storeFailed("read", err)
	}
	cart := &boutiquev1.Cart{ShopperId: shopper}
	for product, quantity := range lines {
		cart.Lines = append(cart.Lines, &boutiquev1.CartLine{ProductId: product, Quantity: quantity})
	}
	slices.SortFunc(cart.Lines, func(a, b *boutiquev1.CartLine) int { return strings.Compare(a.ProductId, b.ProductId) })
	return cart, nil
}

func (s *Service) storeFailed(what string, err error) error {
	code := codes.Unavailable
	if errors.Is(err, context.DeadlineExceeded) {
		code = codes.DeadlineExceeded
	}
	s.Log.Error("the cart store failed", "while", what+" a cart", "cause", err.Error())
	return status.Errorf(code, "%s the cart in Redis: %v; check that redis-cart runs and can be reached", what, err)
}

func checkID(field, id string) error {
	if id == "" || len(id) > maxID {
		return errors.New(field + ": it must have between 1 and 128 bytes")
	}
	return nil
}
