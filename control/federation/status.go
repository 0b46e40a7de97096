package federation

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
	"heddle.io/heddle/control/server/client"
)

// Status tells how the mesh looks from here.
func (f *Federation) Status() client.FederationStatus {
	s, peers := f.outline()
	for i := range s.Clusters {
		s.Clusters[i].Exports = peers[s.Clusters[i].Name].Services.List()
	}
	return s
}

// Clusters tells how the clusters of the mesh look from here, without listing what they export.
func (f *Federation) Clusters() []client.ClusterStatus {
	s, _ := f.outline()
	return s.Clusters
}

// outline is [Federation.Status] without what clusters export, which peers have.
func (f *Federation) outline() (s client.FederationStatus, peers map[string]registry.Peer) {
	issuer, expires := f.config.Authority.Issuer()
	peers = map[string]registry.Peer{f.config.Cluster.Name: {Anchors: f.config.Authority.Anchors()}}
	for _, p := range f.Peers() {
		peers[p.Cluster] = p
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s = client.FederationStatus{
		Cluster: f.config.Cluster.Name, Primary: f.primaryLocked(), Connected: !f.member, Issuer: issuer, IssuerExpires: expires, Counters: f.counters.snapshot(),
		Clusters: []client.ClusterStatus{},
	}
	var problems []string
	if len(f.own.Gateways) > 0 {
		s.Advertise = f.own.Gateways[0].String()
	}
	if f.member {
		s.PrimaryAddress = f.membership.Address
		s.Connected = f.live != nil && f.live.heard
		switch {
		case f.removed != "":
			problems = append(problems, f.removed)
		case !s.Connected:
			problems = append(problems, f.problem)
		}
		problems = append(problems, f.skew)
		s.Clock = f.clock
	} else if f.listenError != "" {
		problems = append(problems, "members cannot connect: "+f.listenError)
	}
	s.Problem = strings.Join(slices.Compact(slices.DeleteFunc(problems, func(p string) bool { return p == "" })), "; ")
	names := slices.Collect(maps.Keys(f.peers))
	for name := range f.clusters {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if !slices.Contains(names, f.config.Cluster.Name) {
		names = append(names, f.config.Cluster.Name)
	}
	slices.Sort(names)
	for _, name := range names {
		s.Clusters = append(s.Clusters, f.statusOf(name, s.Connected, peers[name]))
	}
	return s, peers
}

// statusOf one cluster. The lock is held.
func (f *Federation) statusOf(name string, connected bool, peer registry.Peer) client.ClusterStatus {
	info := f.clusters[name]
	c := client.ClusterStatus{Name: name, Primary: name == f.primaryLocked(), Self: name == f.config.Cluster.Name, Joined: info.joined, Membership: info.membership, Anchors: peer.Anchors}
	if c.Self {
		c.Connected, c.Reachable, c.Version, c.Gateways = connected, true, f.own.Version, f.own.Gateways
		return c
	}
	e := f.peers[name]
	if e == nil {
		c.Problem = "it has not connected yet"
		return c
	}
	c.Connected, c.LastSeen, c.Gateways, c.Reachable, c.Problem, c.Version = e.connected, e.lastSeen, e.Gateways, e.reachable, e.unreachable, e.Version
	if f.member && c.Primary {
		// A member knows best whether it hears the primary.
		c.Connected = connected
	}
	c.Services = peer.Services.Len()
	return c
}

// Token makes a join token. Its error is a [*client.Problem], or the store's.
func (f *Federation) Token(ctx context.Context, request client.TokenRequest) (client.TokenResponse, error) {
	f.mu.Lock()
	isMember, joining, primary, address, own := f.member, f.joining, f.membership.Primary, f.membership.Address, f.own
	f.mu.Unlock()
	if joining {
		return client.TokenResponse{}, &client.Problem{Status: http.StatusConflict, What: "only the primary makes join tokens", Why: "this cluster is joining another mesh",
			Remedy: "make the token at that mesh's primary"}
	}
	if isMember {
		return client.TokenResponse{}, &client.Problem{Status: http.StatusConflict, What: "only the primary makes join tokens", Where: primary + " at " + address,
			Remedy: "`heddle cluster token --cluster " + primary + "` there"}
	}
	if len(own.Gateways) == 0 {
		return client.TokenResponse{}, &client.Problem{Status: http.StatusConflict, What: "this cluster has no address that others could reach",
			Remedy: "start it with `heddle up --advertise ADDRESS`, or isolated, with `heddle up --isolated`"}
	}
	token, expires, err := f.tokens.mint(ctx, f.config.Authority.RootHash(), request.TTL, objects.Origin{Cluster: f.config.Cluster.Name, User: "heddle"})
	if err != nil {
		return client.TokenResponse{}, err
	}
	f.counters.add(countTokensMade)
	f.config.Log.Info("join token made", "token", token.String(), "expires", expires)
	return client.TokenResponse{Token: token.Reveal(), Expires: expires, Address: own.Gateways[0].String()}, nil
}
