package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/federation"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

// Condition types of Cluster objects, beside those of all objects.
const (
	// conditionConnected: the cluster's stream to the primary stands.
	conditionConnected = "Connected"
	// conditionReachable: one of its gateways answers this cluster.
	conditionReachable = "Reachable"
)

// openFederation prepares this controller's part in the mesh.
func (c *Controller) openFederation() error {
	listen := c.config.Listen
	if listen == nil {
		listen = func() (net.Listener, error) { return net.Listen("tcp", c.settings.Federation.String()) }
	}
	var err error
	c.federation, err = federation.Open(federation.Config{
		Cluster: c.config.Cluster, Settings: c.settings, Version: c.config.Version, Store: c.store, Authority: c.authority, Audit: c.audit,
		Gateways: c.gateways, Rotate: c.rotateWorkloads, Accept: c.acceptIssuers, Changed: func() { signal(c.changed) }, Log: c.log,
		Listen: listen,
	})
	return err
}

// gateways are where other clusters reach this one's.
func (c *Controller) gateways() []netip.AddrPort {
	options, err := c.config.Cluster.Options()
	if err != nil {
		c.log.Warn("the cluster's options cannot be read; going on with what is known", "error", err)
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.advertised
	}
	var out []netip.AddrPort
	if options.Advertise.IsValid() {
		out = []netip.AddrPort{netip.AddrPortFrom(options.Advertise, cluster.PortEastWest)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advertised = out
	return out
}

// export tells the other clusters what this one offers.
func (c *Controller) export() {
	c.mu.Lock()
	exports := c.exports
	c.mu.Unlock()
	c.federation.SetOwn(registry.Locality{}, exports)
}

// assign gives hosts of other clusters and of external services their virtual addresses. When no more can be given, those
// that have one keep it.
func (c *Controller) assign(hosts []string) (map[string]netip.Addr, string) {
	addresses, err := c.globals.Assign(hosts)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.log.Error("new global names have no address", "error", err)
		return c.addresses, err.Error()
	}
	c.addresses = addresses
	return addresses, ""
}

// ownCluster makes the object of this cluster, the primary of its mesh.
func (c *Controller) ownCluster(ctx context.Context) error {
	key := objects.Key{Group: objects.Cluster.Group, Kind: objects.Cluster.Kind, Name: c.config.Cluster.Name}
	_, err := c.store.Get(ctx, key)
	if err == nil {
		return nil
	}
	if !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("look for %s: %w", key, err)
	}
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	o := &objects.Object{Kind: objects.Cluster, Origin: objects.Origin{Cluster: c.config.Cluster.Name, User: "heddle"}, Resource: &v1alpha1.Cluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: objects.Cluster.APIVersion(), Kind: objects.Cluster.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: key.Name, CreationTimestamp: now, Generation: 1},
		Spec:       v1alpha1.ClusterSpec{Primary: true, Joined: now},
	}}
	if err := c.store.Apply(ctx, []store.Write{{Key: key, Object: o, IfVersion: store.Absent}}); err != nil && !errors.Is(err, store.ErrConflict) {
		return fmt.Errorf("make %s: %w", key, err)
	}
	return nil
}

// issuersInForce says whether proxies were told who this cluster's own certificates are of now, and by which intermediates
// all clusters' servers are known.
func (c *Controller) issuersInForce() bool {
	now, anchors := c.authority.Issuers(), anchorsOf(c.authority.Anchors(), c.federation.Peers())
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Equal(now, c.issuers) && slices.Equal(anchors, c.anchors)
}

// anchorsOf all clusters, in one list.
func anchorsOf(own []string, peers []registry.Peer) []string {
	all := slices.Clone(own)
	for _, p := range peers {
		all = append(append(all, p.Cluster), p.Anchors...)
	}
	return all
}

// How long proxies may take to acknowledge what they are told, and how often they are looked at.
const (
	acceptTimeout = 20 * time.Second
	acceptLook    = 20 * time.Millisecond
)

// acceptIssuers returns when all proxies that are connected accept certificates of all that this cluster is as an issuer.
func (c *Controller) acceptIssuers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	signal(c.changed)
	look := time.NewTicker(acceptLook)
	defer look.Stop()
	for {
		waiting := []string{"the configuration is not made yet"}
		if c.issuersInForce() {
			if waiting = c.xds.Unsettled(); len(waiting) == 0 {
				return nil
			}
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("%w; waiting for %s", ctx.Err(), brief(waiting))
		}
	}
}

// rotateTimeout is longer than the agent takes at the most.
const rotateTimeout = 45 * time.Second

// rotateWorkloads has the agent renew every certificate.
func (c *Controller) rotateWorkloads(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rotateTimeout)
	defer cancel()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", c.config.Cluster.AgentSocket())
	}}
	defer transport.CloseIdleConnections()
	generation, err := c.authority.Generation()
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/v1/rotate?generation="+generation, nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("the agent does not answer: %w", err)
	}
	defer response.Body.Close()
	body := io.LimitReader(response.Body, 8<<20)
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(body)
		return fmt.Errorf("the agent answers %s: %s", response.Status, strings.TrimSpace(string(text)))
	}
	var rotation client.Rotation
	if err := json.NewDecoder(body).Decode(&rotation); err != nil {
		return fmt.Errorf("the agent's answer: %w", err)
	}
	if len(rotation.Failed) == 0 {
		return nil
	}
	lines := make([]string, 0, len(rotation.Failed))
	for _, f := range rotation.Failed {
		lines = append(lines, f.Replica+": "+f.Problem)
	}
	return errors.New(brief(lines))
}

// setNames makes the names of a model what DNS servers answer.
func (c *Controller) setNames(mesh *model.Mesh) {
	names := client.Names{Domain: mesh.Settings.Domain, Hosts: []client.NamedHost{}}
	for _, n := range resolve.Names(mesh) {
		names.Hosts = append(names.Hosts, client.NamedHost{Name: n.Host, Addresses: n.Addresses, Limited: n.Visible.Limited, Namespaces: n.Visible.Namespaces})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if reflect.DeepEqual(names, c.names) {
		return
	}
	c.names = names
	close(c.renamed)
	c.renamed = make(chan struct{})
}

// Names implements [server.Controller].
func (c *Controller) Names() (client.Names, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names, c.renamed
}

// meshAPI is the API's view of the mesh: each change answers with the status after it.
type meshAPI struct{ c *Controller }

func (m meshAPI) Primary() string { return m.c.federation.Primary() }

func (m meshAPI) Joining() bool { return m.c.federation.Joining() }

func (m meshAPI) Status() client.FederationStatus { return m.c.federation.Status() }

func (m meshAPI) Token(ctx context.Context, r client.TokenRequest) (client.TokenResponse, error) {
	return m.c.federation.Token(ctx, r)
}

func (m meshAPI) Join(ctx context.Context, r client.JoinRequest) (client.FederationStatus, error) {
	if err := m.c.federation.Join(ctx, r); err != nil {
		return client.FederationStatus{}, err
	}
	return m.c.federation.Status(), nil
}

func (m meshAPI) Rotate(ctx context.Context) (client.FederationStatus, error) {
	if err := m.c.federation.Rotate(ctx); err != nil {
		return client.FederationStatus{}, err
	}
	return m.c.federation.Status(), nil
}

func (m meshAPI) RootStatus() client.AuthorityStatus { return m.c.federation.RootStatus() }

func (m meshAPI) RotateRoot(ctx context.Context) error { return m.c.federation.RotateRoot(ctx) }

func (m meshAPI) RequestRoot(another bool) ([]byte, error) {
	return m.c.federation.RequestRoot(another)
}

func (m meshAPI) InstallRoot(ctx context.Context, certificates, chain []byte) error {
	return m.c.federation.InstallRoot(ctx, certificates, chain)
}

func (m meshAPI) AbortRoot(ctx context.Context) error { return m.c.federation.AbortRoot(ctx) }

// clusterConditions say how a cluster of the mesh is seen from here.
func clusterConditions(o *objects.Object, s client.ClusterStatus) []metav1.Condition {
	condition := func(kind string, is bool, good, bad, problem string) metav1.Condition {
		out := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: kind, Message: good, ObservedGeneration: o.GetGeneration()}
		if !is {
			out.Status, out.Reason, out.Message = metav1.ConditionFalse, "Not"+kind, bad
			if problem != "" {
				out.Message += ": " + problem
			}
		}
		return out
	}
	return []metav1.Condition{
		condition(conditionConnected, s.Connected, "its controller and the primary's talk to each other", "its controller and the primary's do not talk to each other", ""),
		condition(conditionReachable, s.Reachable, "its gateways answer", "its gateways do not answer", s.Problem),
	}
}
