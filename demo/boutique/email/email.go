// Package email is the role that writes order confirmations. It sends none: the
// text goes to the log.
package email

import (
	"bytes"
	"context"
	_ "embed"
	"log/slog"
	"net/mail"
	"text/template"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/money"
	"heddle.io/heddle/demo/boutique/role"
)

// Name and Port are the role's name and the TCP port it listens on by default.
// Its Service maps port 5000 to it.
const (
	Name = "emailservice"
	Port = 8080
)

//go:embed confirmation.txt
var confirmationText string

var confirmation = template.Must(template.New("confirmation.txt").
	Funcs(template.FuncMap{"money": money.Format}).Parse(confirmationText))

// Service implements boutiquev1.EmailServiceServer.
type Service struct {
	boutiquev1.UnimplementedEmailServiceServer
	// Log receives each mail.
	Log *slog.Logger
}

// Run serves the role until ctx ends.
func Run(ctx context.Context, env role.Env) error {
	return role.ServeGRPC(ctx, env, Name, Port, func(server *grpc.Server) {
		boutiquev1.RegisterEmailServiceServer(server, &Service{Log: env.Log})
	})
}

// SendOrderConfirmation writes the mail and logs it.
func (s *Service) SendOrderConfirmation(_ context.Context, request *boutiquev1.SendOrderConfirmationRequest) (*boutiquev1.SendOrderConfirmationResponse, error) {
	to, err := mail.ParseAddress(request.Email)
	if err != nil || to.Address != request.Email {
		return nil, status.Errorf(codes.InvalidArgument, "email: %q is not an address such as anna@example.com", request.Email)
	}
	if request.Order.GetNumber() == "" {
		return nil, status.Error(codes.InvalidArgument, "order: it has no number; send the order as checkout completed it")
	}
	var text bytes.Buffer
	if err := confirmation.Execute(&text, request.Order); err != nil {
		return nil, status.Errorf(codes.Internal, "write the confirmation of order %s: %v", request.Order.Number, err)
	}
	s.Log.Info("confirmation sent", "order", request.Order.Number, "to", to.Address, "text", text.String())
	return &boutiquev1.SendOrderConfirmationResponse{}, nil
}
