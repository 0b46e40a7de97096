//go:build conformance

package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"heddle.io/heddle/test/hostile/upstream"
)

// Ports of the authorization server.
const (
	authzPort     = 20001
	authzGRPCPort = 20002
)

// authz is an authorization server, by HTTP and by gRPC.
type authz struct {
	authv3.UnimplementedAuthorizationServer
	http   *upstream.HTTP1
	server *grpc.Server

	mu     sync.Mutex
	answer *authv3.CheckResponse
	lines  []string
}

func newAuthz(address string) (*authz, error) {
	a := &authz{server: grpc.NewServer()}
	var err error
	if a.http, err = upstream.NewHTTP1(net.JoinHostPort(address, strconv.Itoa(authzPort))); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(authzGRPCPort)))
	if err != nil {
		return nil, err
	}
	authv3.RegisterAuthorizationServer(a.server, a)
	go func() { _ = a.server.Serve(listener) }()
	return a, nil
}

func (a *authz) close() {
	a.http.Close()
	a.server.Stop()
}

// play answers as a case says.
func (a *authz) play(t *testing.T, c testCase) {
	t.Helper()
	a.http.Play(nil)
	if c.Authz != "" {
		a.http.Play(&upstream.Script{Answer: []byte(c.Authz), Then: "fin"})
	}
	answer := &authv3.CheckResponse{}
	if c.Check != nil {
		text, err := json.Marshal(c.Check)
		if err != nil {
			t.Fatal(err)
		}
		if err := protojson.Unmarshal(text, answer); err != nil {
			t.Fatalf("check: %v", err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer, a.lines = answer, nil
}

// Check implements the service.
func (a *authz) Check(ctx context.Context, request *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if fields, ok := metadata.FromIncomingContext(ctx); ok {
		for name, values := range fields {
			for _, v := range values {
				a.lines = append(a.lines, settled(fmt.Sprintf("check has %s: %s", name, v)))
			}
		}
	}
	attributes := request.GetAttributes()
	http := attributes.GetRequest().GetHttp()
	for name, value := range http.GetHeaders() {
		a.lines = append(a.lines, settled(fmt.Sprintf("check shows %s: %s", name, value)))
	}
	// Shown already, or different each time.
	if http != nil {
		http.Headers, http.Id, attributes.GetRequest().Time = nil, "", nil
	}
	attributes.GetSource().GetAddress().GetSocketAddress().PortSpecifier = nil
	attributes.GetDestination().Address = nil
	for _, said := range attributes.GetMetadataContext().GetFilterMetadata() {
		// In milliseconds: none or one, as it comes.
		if took := said.GetFields()["ext_authz_duration"]; took != nil {
			took.Kind = &structpb.Value_StringValue{StringValue: "some time"}
		}
	}
	text, err := protojson.Marshal(request)
	if err != nil {
		return nil, err
	}
	var parts map[string]any
	if err := json.Unmarshal(text, &parts); err != nil {
		return nil, err
	}
	a.lines = append(a.lines, leaves("check has", parts)...)
	if http.GetPath() == "/case/slow" {
		<-time.After(300 * time.Millisecond)
	}
	return a.answer, nil
}

// leaves of a JSON document, a path a line.
func leaves(path string, value any) []string {
	parts, ok := value.(map[string]any)
	if !ok {
		return []string{fmt.Sprintf("%s %v", path, value)}
	}
	var out []string
	for name, part := range parts {
		out = append(out, leaves(path+"."+name, part)...)
	}
	sort.Strings(out)
	return out
}

// seen is what the server was asked since the last time.
func (a *authz) seen() []string {
	var out []string
	for _, r := range a.http.Take(time.Second) {
		out = append(out, seen("authz", r)...)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.lines {
		if _, from, found := strings.Cut(l, "x-forwarded-for: "); !found || !isOwn(from) {
			out = append(out, l)
		}
	}
	a.lines = nil
	return out
}
