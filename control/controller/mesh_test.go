package controller

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/federation"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// instance is a controller in this process, with what an agent would do for it: its gateway is a relay on an address of
// the loopback network, and certificates are renewed by counting.
type instance struct {
	t       *testing.T
	place   cluster.Cluster
	address netip.Addr
	client  *client.Client
	rotated atomic.Int64
	failing atomic.Bool
	stop    func()
}

// loopback gives addresses that no other test on this machine has.
var loopback atomic.Uint32

func nextLoopback() netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(os.Getpid())<<8|loopback.Add(1))
	return netip.AddrFrom4([4]byte{127, b[1]%254 + 1, b[2], b[3]})
}

func newInstance(t *testing.T, name string) *instance {
	t.Helper()
	c, err := cluster.New(name)
	if err != nil {
		t.Fatal(err)
	}
	// Sockets have short names.
	root, err := os.MkdirTemp("", "heddle")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	c.DataRoot, c.RunRoot = filepath.Join(root, "lib"), filepath.Join(root, "run")
	i := &instance{t: t, place: c, address: nextLoopback(), client: client.New(c.APISocket())}
	for _, dir := range []string{c.Data(), c.Run()} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Keep(cluster.Options{Family: cluster.IPv4, Advertise: i.address}); err != nil {
		t.Fatal(err)
	}
	i.agent()
	return i
}

// agent answers what the controller asks the agent.
func (i *instance) agent() {
	listener, err := net.Listen("unix", i.place.AgentSocket())
	if err != nil {
		i.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/rotate", func(w http.ResponseWriter, _ *http.Request) {
		i.rotated.Add(1)
		if i.failing.Load() {
			_, _ = io.WriteString(w, `{"renewed":1,"failed":[{"replica":"shop/cart-0","problem":"no answer"}]}`)
			return
		}
		_, _ = io.WriteString(w, `{"renewed":2}`)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	i.t.Cleanup(func() { server.Close() })
}

// start runs the controller until the test ends or it is stopped.
func (i *instance) start() *instance {
	i.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	listened := make(chan net.Listener, 1)
	go func() {
		ended <- Run(ctx, Config{Cluster: i.place, Version: "test", Log: slog.New(slog.DiscardHandler), Listen: func() (net.Listener, error) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err == nil {
				listened <- l
			}
			return l, err
		}})
	}()
	var gateway net.Listener
	i.stop = sync.OnceFunc(func() {
		if gateway != nil {
			gateway.Close()
		}
		cancel()
		if err := <-ended; err != nil {
			i.t.Error(err)
		}
	})
	i.t.Cleanup(func() { i.stop() })
	select {
	case l := <-listened:
		gateway = i.gateway(ctx, l.Addr().String())
	case <-time.After(30 * time.Second):
		i.t.Fatal("it does not listen")
	}
	eventually(i.t, "the API answers", func() bool { _, err := i.client.Status(context.Background()); return err == nil })
	return i
}

// gateway relays what comes to the advertised address to the controller.
func (i *instance) gateway(ctx context.Context, to string) net.Listener {
	i.t.Helper()
	listener, err := net.Listen("tcp", netip.AddrPortFrom(i.address, cluster.PortEastWest).String())
	if err != nil {
		i.t.Fatal(err)
	}
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer out.Close()
				stop := context.AfterFunc(ctx, func() { in.Close(); out.Close() })
				defer stop()
				go func() { _, _ = io.Copy(out, in); out.Close() }()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
	return listener
}

func (i *instance) apply(manifest string) {
	i.t.Helper()
	if _, err := i.client.Apply(context.Background(), client.ApplyRequest{Manifests: []client.Manifest{{File: "t.yaml", Content: manifest}}, User: "me"}); err != nil {
		i.t.Fatal(err)
	}
}

// report tells the controller of a replica that is ready.
func (i *instance) report(workload, account, address string) {
	i.t.Helper()
	err := i.client.Report(context.Background(), client.Report{Agent: "host", Replicas: []client.Replica{{
		Namespace: "shop", Workload: workload, ServiceAccount: account, Labels: map[string]string{"app": workload}, Ports: map[string]int32{"http": 8080},
		NodeID: "sidecar~" + address + "~" + workload + "-0.shop~shop.svc.cluster.local", Ready: true,
		State: objects.ReplicaState{Name: workload + "-0", Phase: "Ready", Address: address},
	}}})
	if err != nil {
		i.t.Fatal(err)
	}
}

func (i *instance) mesh() client.FederationStatus {
	i.t.Helper()
	s, err := i.client.Federation(context.Background())
	if err != nil {
		i.t.Fatal(err)
	}
	return s
}

func (i *instance) sees(name string) client.ClusterStatus {
	for _, c := range i.mesh().Clusters {
		if c.Name == name {
			return c
		}
	}
	return client.ClusterStatus{}
}

// address of a name, as DNS would give it.
func (i *instance) resolve(name string) netip.Addr {
	names, err := i.client.Names(context.Background())
	if err != nil {
		i.t.Fatal(err)
	}
	for _, h := range names.Hosts {
		if h.Name == name && len(h.Addresses) == 1 {
			return h.Addresses[0]
		}
	}
	return netip.Addr{}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

const shop = `apiVersion: v1
kind: Namespace
metadata: { name: shop }
---
apiVersion: v1
kind: Service
metadata: { name: NAME, namespace: shop }
spec: { selector: { app: NAME }, ports: [{ name: http, port: 80, targetPort: 8080 }] }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: NAME, namespace: shop }
`

const boutique = `apiVersion: heddle.io/v1alpha1
kind: GlobalNamespace
metadata: { name: boutique }
spec: { domain: acme.demo, mappings: [{ cluster: "*", namespace: shop }] }
`

func TestTwoControllersAreOneMesh(t *testing.T) {
	ctx := context.Background()
	one, two := newInstance(t, "cluster1").start(), newInstance(t, "cluster2").start()
	if s := one.mesh(); s.Primary != "cluster1" || !s.Connected || len(s.Clusters) != 1 || !s.Clusters[0].Primary || s.Advertise != one.address.String()+":15443" {
		t.Fatalf("%+v", s)
	}
	one.apply(strings.ReplaceAll(shop, "NAME", "ads") + "---\n" + boutique)
	two.apply(strings.ReplaceAll(shop, "NAME", "cart"))
	one.report("ads", "ads", "10.244.0.2")
	two.report("cart", "cart", "10.244.0.2")
	token, err := one.client.Token(ctx, client.TokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	two.failing.Store(true)
	var problem *client.Problem
	if _, err := two.client.Join(ctx, client.JoinRequest{Address: token.Address, Token: token.Token}); !errors.As(err, &problem) || !strings.Contains(problem.Why, "shop/cart-0: no answer") {
		t.Fatal(err)
	}
	two.failing.Store(false)
	eventually(t, "the join is completed by itself", func() bool { return two.mesh().Primary == "cluster1" && two.mesh().Connected })
	eventually(t, "all certificates were renewed once more", func() bool { return two.rotated.Load() > 4 })
	// Names of the other cluster, from virtual addresses that are kept.
	eventually(t, "both know the other's service", func() bool {
		return one.resolve("cart.shop.svc.cluster.local").IsValid() && two.resolve("ads.acme.demo").IsValid() && two.resolve("cart.acme.demo").IsValid()
	})
	eventually(t, "both reach each other", func() bool { return one.sees("cluster2").Reachable && two.sees("cluster1").Reachable })
	if c := one.sees("cluster2"); c.Services != 1 || !c.Connected || c.Version != "test" || c.LastSeen.IsZero() || c.Joined.IsZero() {
		t.Errorf("%+v", c)
	}
	eventually(t, "the Cluster objects say so", func() bool {
		o, err := two.client.Get(ctx, objects.Cluster, "", "cluster1")
		if err != nil {
			return false
		}
		text := ""
		for _, c := range o.Status.Conditions {
			text += c.Type + "=" + string(c.Status) + " "
		}
		return strings.Contains(text, "Connected=True") && strings.Contains(text, "Reachable=True")
	})
	// The mesh's objects can be changed at the primary only.
	if _, err := two.client.Apply(ctx, client.ApplyRequest{Manifests: []client.Manifest{{File: "g.yaml", Content: boutique}}}); err == nil || !strings.Contains(err.Error(), `belongs to the primary "cluster1"`) {
		t.Error(err)
	}
	if err := one.client.Delete(ctx, objects.Cluster, "", "cluster1"); err == nil || !strings.Contains(err.Error(), "cannot be taken out of its own mesh") {
		t.Error(err)
	}
	address := two.resolve("ads.acme.demo")

	// With the primary dead, also after a restart in that state, the member serves, signs and takes changes.
	one.stop()
	eventually(t, "the member notices", func() bool { return !two.mesh().Connected && !two.sees("cluster1").Reachable })
	two.stop()
	two.start()
	if got := two.resolve("ads.acme.demo"); got != address {
		t.Errorf("%s after the restart, %s before", got, address)
	}
	two.apply(strings.ReplaceAll(shop, "NAME", "recommendation"))
	eventually(t, "a local change is served", func() bool { return two.resolve("recommendation.acme.demo").IsValid() })
	one.start()
	eventually(t, "both agree again", func() bool {
		return two.mesh().Connected && one.sees("cluster2").Services == 2
	})

	// Rotation, removal.
	before := two.mesh().IssuerExpires
	if _, err := two.client.RotateIssuer(ctx); err != nil {
		t.Fatal(err)
	}
	if s := two.mesh(); s.IssuerExpires.Before(before) || s.Issuer != "Heddle intermediate cluster2" {
		t.Errorf("%+v", s)
	}
	if err := one.client.Delete(ctx, objects.Cluster, "", "cluster2"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both forget each other", func() bool {
		return !one.resolve("cart.shop.svc.cluster.local").IsValid() && !two.resolve("ads.acme.demo").IsValid() && strings.Contains(two.mesh().Problem, "not a member")
	})
	if token, err = one.client.Token(ctx, client.TokenRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := two.client.Join(ctx, client.JoinRequest{Address: token.Address, Token: token.Token}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is as before", func() bool { return two.resolve("ads.acme.demo") == address && two.mesh().Connected })
}

func TestJoinBeforeTheFirstStart(t *testing.T) {
	ctx := context.Background()
	one, two := newInstance(t, "cluster1").start(), newInstance(t, "cluster2")
	one.apply(boutique)
	token, err := one.client.Token(ctx, client.TokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := federation.Join(ctx, federation.JoinOptions{Cluster: two.place, Address: token.Address, Token: token.Token, Version: "test"}); err != nil {
		t.Fatal(err)
	}
	two.start()
	eventually(t, "it is a member with the primary's objects", func() bool {
		_, err := two.client.Get(ctx, objects.GlobalNamespace, "", "boutique")
		return err == nil && two.mesh().Connected && len(two.mesh().Clusters) == 2
	})
	if _, err := os.Stat(filepath.Join(federation.AuthorityDir(two.place), "root.pem")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the member has a root: %v", err)
	}
	if two.rotated.Load() != 0 {
		t.Error("nothing had to be renewed")
	}
	if _, err := two.client.Token(ctx, client.TokenRequest{}); err == nil || !strings.Contains(err.Error(), "only the primary makes join tokens") {
		t.Error(err)
	}
}

func TestPortForOthersThatComesLate(t *testing.T) {
	i := newInstance(t, "cluster1")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	var attempts atomic.Int64
	go func() {
		ended <- Run(ctx, Config{Cluster: i.place, Version: "test", Log: slog.New(slog.DiscardHandler), Listen: func() (net.Listener, error) {
			if attempts.Add(1) < 3 {
				return nil, errors.New("cannot assign requested address")
			}
			return net.Listen("tcp", "127.0.0.1:0")
		}})
	}()
	said := false
	eventually(t, "it works without, says so, and goes on trying", func() bool {
		s, err := i.client.Federation(context.Background())
		said = said || err == nil && strings.Contains(s.Problem, "cannot assign")
		return said && err == nil && s.Problem == ""
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
