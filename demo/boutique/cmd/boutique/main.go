// Command boutique is the sample shop: one program, eleven roles.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"heddle.io/heddle/demo/boutique/ad"
	"heddle.io/heddle/demo/boutique/cart"
	"heddle.io/heddle/demo/boutique/checkout"
	"heddle.io/heddle/demo/boutique/currency"
	"heddle.io/heddle/demo/boutique/email"
	"heddle.io/heddle/demo/boutique/frontend"
	"heddle.io/heddle/demo/boutique/loadgenerator"
	"heddle.io/heddle/demo/boutique/payment"
	"heddle.io/heddle/demo/boutique/productcatalog"
	"heddle.io/heddle/demo/boutique/recommendation"
	"heddle.io/heddle/demo/boutique/role"
	"heddle.io/heddle/demo/boutique/shipping"
)

// part is one of the eleven roles.
type part struct {
	name string
	// port is where it listens by default, 0 for nowhere.
	port  int
	short string
	run   func(context.Context, role.Env) error
}

// parts is ordered so that each role comes after those it calls.
var parts = []part{
	{ad.Name, ad.Port, "Pick advertisements", ad.Run},
	{cart.Name, cart.Port, "Keep carts in Redis", cart.Run},
	{currency.Name, currency.Port, "Convert prices", currency.Run},
	{email.Name, email.Port, "Write order confirmations", email.Run},
	{payment.Name, payment.Port, "Check and charge cards", payment.Run},
	{productcatalog.Name, productcatalog.Port, "Know the products", productcatalog.Run},
	{shipping.Name, shipping.Port, "Price and send parcels", shipping.Run},
	{recommendation.Name, recommendation.Port, "Suggest products", recommendation.Run},
	{checkout.Name, checkout.Port, "Turn carts into orders", checkout.Run},
	{frontend.Name, frontend.Port, "Show the shop to people", frontend.Run},
	{loadgenerator.Name, 0, "Visit the shop and buy", loadgenerator.Run},
}

func main() {
	// The second signal ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop)
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "boutique: %v\n", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "boutique <role>",
		Short:         "A small shop of eleven services, to see a mesh at work",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	for _, p := range parts {
		root.AddCommand(&cobra.Command{
			Use:   p.name,
			Short: p.short,
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				host, err := os.Hostname()
				if err != nil {
					return fmt.Errorf("read the host's name: %w", err)
				}
				return p.run(cmd.Context(), role.Env{
					Getenv: os.Getenv,
					Log:    slog.New(slog.NewJSONHandler(cmd.OutOrStdout(), nil)).With("role", p.name),
					Now:    time.Now,
					Random: rand.Reader,
					Host:   host,
				})
			},
		})
	}
	return root
}
