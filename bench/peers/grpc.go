package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"heddle.io/heddle/bench/process"
)

// GRPCFlag has the benchmark's program be the server that [GRPCBackend] starts: the argument after it is for [ServeGRPC].
const GRPCFlag = "-serve-grpc"

// GRPCMethod is the unary call of a comparison: gRPC's own health check.
const GRPCMethod = "/grpc.health.v1.Health/Check"

// callBound is how long one call may take.
const callBound = 10 * time.Second

// GRPCBackend starts the server behind the proxies: grpc-go's, without TLS.
func GRPCBackend(at process.Place, address string) (*process.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	p, err := process.Start("grpc backend", at, self, GRPCFlag, address)
	if err != nil {
		return nil, err
	}
	return ready(p, address)
}

// ServeGRPC is that server. It serves until it is ended.
func ServeGRPC(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return newGRPC().Serve(listener)
}

// StartGRPC starts the same server in this process.
func StartGRPC(address string) (*grpc.Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	server := newGRPC()
	go func() { _ = server.Serve(listener) }() // Who asks it sees when it fails.
	return server, nil
}

func newGRPC() *grpc.Server {
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	return server
}

// CheckGRPC makes one such call through a proxy with TLS: what a load generator counts is HTTP's status alone.
func CheckGRPC(address string) error {
	// Whose the certificate is does not matter here.
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callBound)
	defer cancel()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return errors.Join(err, conn.Close())
}

// GRPCMessage writes what a client of [GRPCMethod] sends, a message without fields behind gRPC's prefix of five bytes, and gives the
// file's path.
func GRPCMessage(dir string) (string, error) {
	path := filepath.Join(dir, "message")
	return path, os.WriteFile(path, make([]byte, 5), 0o644)
}
