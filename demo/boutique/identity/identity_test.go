package identity

import (
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

func TestParseForwarded(t *testing.T) {
	for _, c := range []struct{ header, client, server string }{
		{"", "", ""},
		{"none", "", ""},
		{"By=spiffe://d/s;Hash=ab;Subject=\"\";URI=spiffe://d/c", "spiffe://d/c", "spiffe://d/s"},
		{"by=s;uri=c", "c", "s"},
		{"By=far;URI=farther,By=s;URI=c", "c", "s"},
		{`By=s;Subject="CN=x,URI=fake;URI=fake2";URI=c`, "c", "s"},
		{`By=s;Subject="a\",URI=fake";URI="c;d"`, "c;d", "s"},
		{"URI=c;URI=second", "c", ""},
		{`By="unclosed;URI=c`, "", `"unclosed;URI=c`},
		{",", "", ""},
		{`"\`, "", ""},
	} {
		if got := ParseForwarded(c.header); got.Client != c.client || got.Server != c.server {
			t.Errorf("ParseForwarded(%q) = %+v, want %q and %q", c.header, got, c.client, c.server)
		}
	}
}

func TestTheClientsClusterIsWhatItsCertificateNames(t *testing.T) {
	for header, want := range map[string]string{
		`By=s;URI=c;DNS=east.clusters.cluster.local`:                                                                    "east",
		`By=s;URI=c;DNS=frontend.example.com;DNS=b.clusters.mesh.corp`:                                                  "b",
		`DNS=far.clusters.d,By=s;dns=near.clusters.d`:                                                                   "near",
		`DNS=0123456789abcdef0123456789abcdef.east.clusters.d;DNS=a.b.0123456789abcdef0123456789abcdef.east.clusters.d`: "east",
		`DNS=a.b.0123456789abcdef0123456789abcdef.east.clusters.d;DNS=0123456789abcdef0123456789abcdef.west.clusters.d`: "west",
		`DNS=.clusters.d`:            "",
		`DNS=a.b.clusters.d`:         "",
		`DNS=east.clusters.`:         "",
		`DNS=clusters.d`:             "",
		`URI=east.clusters.d`:        "",
		`Subject="DNS=x.clusters.d"`: "",
	} {
		if got := ParseForwarded(header).ClientCluster; got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
}

func TestServingCluster(t *testing.T) {
	for value, want := range map[string]string{"": "", "role": "", "role/host": "", "role/host/east": "east", "role/host/a/b": "a/b"} {
		if got := ServingCluster(value); got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
		if want != "" && ServingCluster(ServedBy("role", "host", want)) != want {
			t.Errorf("%q does not come back", want)
		}
	}
}

func FuzzParseForwarded(f *testing.F) {
	f.Add(`By=s;Subject="a\",b";URI=c,By=x`)
	f.Fuzz(func(t *testing.T, header string) {
		if got := ParseForwarded(header); len(got.Client)+len(got.Server) > len(header) {
			t.Errorf("%+v is longer than %q", got, header)
		}
	})
}

func TestEcho(t *testing.T) {
	if got := Echo(nil); got != None {
		t.Errorf("Echo(nil) = %q", got)
	}
	if got := Echo([]string{"a", "b"}); got != "a,b" {
		t.Errorf("two headers: %q", got)
	}
	if got := Echo([]string{strings.Repeat("x", maxForwarded), "URI=c"}); len(got) != maxForwarded || ParseForwarded(got).Client != "c" {
		t.Errorf("a long header: %d bytes, %+v", len(got), ParseForwarded(got))
	}
}

// dialHealth returns a client of a health service whose server echoes.
func dialHealth(t *testing.T) healthv1.HealthClient {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.UnaryInterceptor(EchoClient("mugs/host")))
	healthv1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithUnaryInterceptor(RecordCalls("tests", "mugs")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return healthv1.NewHealthClient(conn)
}

func TestCallsAreRecordedAsTheServerSawThem(t *testing.T) {
	client := dialHealth(t)
	ledger := &Ledger{}
	ctx := WithLedger(t.Context(), ledger)
	if _, err := client.Check(ctx, &healthv1.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	known := metadata.AppendToOutgoingContext(ctx, HeaderForwarded, "By=spiffe://d/mugs;URI=spiffe://d/tests")
	if _, err := client.Check(known, &healthv1.HealthCheckRequest{Service: "absent"}); status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	if _, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	hops := ledger.Hops()
	if len(hops) != 2 {
		t.Fatalf("%d hops, want 2: %v", len(hops), hops)
	}
	plain, failed := hops[0], hops[1]
	if plain.Caller != "tests" || plain.Service != "mugs" || plain.Method != "Check" || plain.ClientIdentity != "" || plain.ServedBy != "mugs/host" || plain.Status != "OK" {
		t.Errorf("plaintext call: %v", plain)
	}
	if failed.ClientIdentity != "spiffe://d/tests" || failed.ServerIdentity != "spiffe://d/mugs" || failed.Status != "NotFound" {
		t.Errorf("failed call with an identity: %v", failed)
	}
}
