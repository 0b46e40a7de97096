package cart

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/redistest"
)

// memory is a Store in memory.
type memory struct {
	mu    sync.Mutex
	carts map[string]map[string]int32
}

func (m *memory) Add(_ context.Context, shopper, product string, quantity int32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	lines := m.carts[shopper]
	had, known := lines[product]
	if had+quantity > MaxQuantity || !known && len(lines) >= MaxLines {
		return ErrFull
	}
	if lines == nil {
		lines = map[string]int32{}
		m.carts[shopper] = lines
	}
	lines[product] += quantity
	return nil
}

func (m *memory) Lines(_ context.Context, shopper string) (map[string]int32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	lines := map[string]int32{}
	for product, quantity := range m.carts[shopper] {
		lines[product] = quantity
	}
	return lines, nil
}

func (m *memory) Empty(_ context.Context, shopper string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.carts, shopper)
	return nil
}

// Each test of the contract runs against both stores, so that the one in memory
// cannot be kinder than Redis.
func TestCart(t *testing.T) {
	t.Run("memory", func(t *testing.T) { testCart(t, &memory{carts: map[string]map[string]int32{}}) })
	t.Run("redis", func(t *testing.T) {
		store := NewRedis(redistest.Start(t))
		t.Cleanup(store.Close)
		testCart(t, store)
	})
}

func testCart(t *testing.T, store Store) {
	service := &Service{Store: store, Log: slog.New(slog.DiscardHandler)}
	ctx := context.Background()
	add := func(shopper, product string, quantity int32) (*boutiquev1.Cart, error) {
		return service.AddItem(ctx, &boutiquev1.AddItemRequest{ShopperId: shopper, ProductId: product, Quantity: quantity})
	}
	mustAdd := func(shopper, product string, quantity int32) *boutiquev1.Cart {
		t.Helper()
		cart, err := add(shopper, product, quantity)
		if err != nil {
			t.Fatalf("add %d %s: %v", quantity, product, err)
		}
		return cart
	}

	mustAdd("anna", "teapot", 2)
	mustAdd("anna", "blanket", 1)
	cart := mustAdd("anna", "teapot", 3)
	if len(cart.Lines) != 2 || cart.Lines[0].ProductId != "blanket" || cart.Lines[1].Quantity != 5 {
		t.Errorf("cart is %v", cart.Lines)
	}
	if other, err := service.GetCart(ctx, &boutiquev1.GetCartRequest{ShopperId: "ben"}); err != nil || len(other.Lines) != 0 {
		t.Errorf("an unknown shopper's cart: %v, %v", other, err)
	}

	for _, c := range []struct {
		shopper, product string
		quantity         int32
		want             codes.Code
	}{
		{"", "teapot", 1, codes.InvalidArgument},
		{"anna", "", 1, codes.InvalidArgument},
		{strings.Repeat("x", 129), "teapot", 1, codes.InvalidArgument},
		{"anna", "teapot", 0, codes.InvalidArgument},
		{"anna", "teapot", -5, codes.InvalidArgument},
		{"anna", "teapot", math.MaxInt32, codes.InvalidArgument},
		{"anna", "teapot", math.MinInt32, codes.InvalidArgument},
		{"anna", "teapot", 95, codes.FailedPrecondition}, // 5 + 95 = 100
	} {
		if _, err := add(c.shopper, c.product, c.quantity); status.Code(err) != c.want {
			t.Errorf("add %d %q for %.10q: %v, want %s", c.quantity, c.product, c.shopper, err, c.want)
		}
	}
	mustAdd("anna", "teapot", 94)

	for i := range MaxLines {
		mustAdd("carla", fmt.Sprint("product-", i), 1)
	}
	if _, err := add("carla", "one-more", 1); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("line %d: %v", MaxLines+1, err)
	}
	mustAdd("carla", "product-0", 1)

	if _, err := service.EmptyCart(ctx, &boutiquev1.EmptyCartRequest{ShopperId: "anna"}); err != nil {
		t.Fatal(err)
	}
	if _, err := service.EmptyCart(ctx, &boutiquev1.EmptyCartRequest{ShopperId: "anna"}); err != nil {
		t.Errorf("empty twice: %v", err)
	}
	if cart, err := service.GetCart(ctx, &boutiquev1.GetCartRequest{ShopperId: "anna"}); err != nil || len(cart.Lines) != 0 {
		t.Errorf("after emptying: %v, %v", cart, err)
	}

	var group sync.WaitGroup
	for range 120 {
		group.Go(func() { _, _ = add("dora", "teapot", 1) })
	}
	group.Wait()
	if cart, err := service.GetCart(ctx, &boutiquev1.GetCartRequest{ShopperId: "dora"}); err != nil || cart.Lines[0].Quantity != MaxQuantity {
		t.Errorf("120 additions at once: %v, %v; want %d pieces", cart, err, MaxQuantity)
	}
}

func TestAbsentRedisIsUnavailable(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	store := NewRedis(address)
	t.Cleanup(store.Close)
	service := &Service{Store: store, Log: slog.New(slog.DiscardHandler)}
	_, err = service.GetCart(context.Background(), &boutiquev1.GetCartRequest{ShopperId: "anna"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "redis-cart") {
		t.Errorf("GetCart: %v", err)
	}
}
