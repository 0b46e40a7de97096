package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/registry"
)

// Names is what the DNS server of every host answers: GET /heddle/v1/names gives it once, and with ?watch=1 as one JSON
// line now and after each change.
type Names struct {
	// Domain is the cluster's DNS domain; names below it that are not listed do not exist.
	Domain string `json:"domain"`
	// Hosts sorted by name.
	Hosts []NamedHost `json:"hosts"`
}

// NamedHost is one full name, lower case, without a final dot.
type NamedHost struct {
	Name string `json:"name"`
	// Addresses it resolves to: a virtual address, or the endpoints of a headless service.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Alias is another name that this one stands for (ExternalName); then Addresses is empty.
	Alias string `json:"alias,omitempty"`
	// Limited says that only workloads of Namespaces see the name.
	Limited    bool     `json:"limited,omitempty"`
	Namespaces []string `json:"namespaces,omitempty"`
}

// TokenRequest asks for a join token: POST /heddle/v1/federation/tokens.
type TokenRequest struct {
	// TTL is how long it can be used. Default one hour, at most a week.
	TTL time.Duration `json:"ttl,omitempty"`
}

// TokenResponse is the only time that the token is told.
type TokenResponse struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	// Address is where the joining cluster finds this one.
	Address string `json:"address"`
}

// JoinRequest has a running cluster join another one: POST /heddle/v1/federation/join.
type JoinRequest struct {
	Address string `json:"address"`
	Token   string `json:"token"`
}

// FederationStatus is GET /heddle/v1/federation.
type FederationStatus struct {
	// Cluster is this cluster, Primary the mesh's primary (the same when it is itself).
	Cluster string `json:"cluster"`
	Primary string `json:"primary"`
	// Address of the primary, on members.
	PrimaryAddress string `json:"primaryAddress,omitempty"`
	// Advertise is this cluster's own address for others, empty when it has none.
	Advertise string `json:"advertise,omitempty"`
	// Connected says that the stream to the primary stands; always true on the primary. Problem says why not.
	Connected bool   `json:"connected"`
	Problem   string `json:"problem,omitempty"`
	// Clock is by how much the primary's clock is ahead of this one's, as heard last; on members.
	Clock time.Duration `json:"clock,omitempty"`
	// Issuer and IssuerExpires describe this cluster's intermediate.
	Issuer        string    `json:"issuer"`
	IssuerExpires time.Time `json:"issuerExpires"`
	// Clusters are all clusters of the mesh, this one included, sorted by name.
	Clusters []ClusterStatus `json:"clusters"`
	// Counters of this controller since it started, by name: joins, refusals, reconnects, messages.
	Counters map[string]uint64 `json:"counters,omitempty"`
}

// ClusterStatus is what this cluster knows of one cluster.
type ClusterStatus struct {
	Name    string `json:"name"`
	Primary bool   `json:"primary,omitempty"`
	Self    bool   `json:"self,omitempty"`
	// Connected says that its federation stream stands (on members: as the primary tells).
	Connected bool `json:"connected"`
	// LastSeen is when it was last heard of, on the primary.
	LastSeen time.Time `json:"lastSeen,omitzero"`
	// Gateways are its east-west gateways, Reachable whether one of them answers this cluster.
	Gateways  []netip.AddrPort `json:"gateways,omitempty"`
	Reachable bool             `json:"reachable"`
	Problem   string           `json:"problem,omitempty"`
	// Anchors are its intermediates (PEM), by which clients here know its servers; none when they go by the names alone, since
	// it is of a version that announces none.
	Anchors []string `json:"anchors,omitempty"`
	// Services is how many it exports to this cluster, Exports which.
	Services int               `json:"services"`
	Exports  []registry.Export `json:"exports,omitempty"`
	Version  string            `json:"version,omitempty"`
	// Joined is when it joined, Membership the hash of the key that it joined with; empty for the primary.
	Joined     time.Time `json:"joined,omitzero"`
	Membership string    `json:"membership,omitempty"`
}

// Issuer is the cluster as its certificates name it.
func (s ClusterStatus) Issuer() cluster.Issuer {
	return cluster.Issuer{Cluster: s.Name, Membership: s.Membership}
}

// Names gives what DNS servers answer now.
func (c *Client) Names(ctx context.Context) (Names, error) {
	var names Names
	err := c.Do(ctx, http.MethodGet, "/heddle/v1/names", nil, &names)
	return names, err
}

// WatchNames calls f with what DNS servers answer, now and after each change, until ctx ends or the stream breaks; it
// never returns nil.
func (c *Client) WatchNames(ctx context.Context, f func(Names)) error {
	body, err := c.Open(ctx, http.MethodGet, "/heddle/v1/names?watch=1", nil)
	if err != nil {
		return err
	}
	defer body.Close()
	decoder := json.NewDecoder(body)
	for {
		var names Names
		if err := decoder.Decode(&names); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("watch of names ended: %w", err)
		}
		f(names)
	}
}

// Token makes a join token. The cluster must be its mesh's primary.
func (c *Client) Token(ctx context.Context, request TokenRequest) (TokenResponse, error) {
	var response TokenResponse
	err := c.Do(ctx, http.MethodPost, "/heddle/v1/federation/tokens", request, &response)
	return response, err
}

// Join has the running cluster join another one's mesh, and returns once it is a member whose workloads trust the mesh's
// root. Certificates of the mesh that a workload could not be given at once, the agent goes on asking for.
func (c *Client) Join(ctx context.Context, request JoinRequest) (FederationStatus, error) {
	var status FederationStatus
	err := c.Do(ctx, http.MethodPost, "/heddle/v1/federation/join", request, &status)
	return status, err
}

// Federation tells how the mesh looks from this cluster.
func (c *Client) Federation(ctx context.Context) (FederationStatus, error) {
	var status FederationStatus
	err := c.Do(ctx, http.MethodGet, "/heddle/v1/federation", nil, &status)
	return status, err
}

// RotateIssuer gets the cluster a new intermediate now and has all its workloads' certificates renewed by it.
func (c *Client) RotateIssuer(ctx context.Context) (FederationStatus, error) {
	var status FederationStatus
	err := c.Do(ctx, http.MethodPost, "/heddle/v1/federation/rotate", nil, &status)
	return status, err
}

// Rotation is the agent's answer to POST /v1/rotate: every replica's certificate that was not of the
// wanted generation (query `generation`; without it, every one) was asked for anew.
type Rotation struct {
	// Renewed counts the replicas whose proxies have a certificate of the wanted generation.
	Renewed int `json:"renewed"`
	// Failed lists those that keep what they have, sorted; their agent goes on trying.
	Failed []RotationFailure `json:"failed,omitempty"`
}

// RotationFailure says why a replica has no new certificate.
type RotationFailure struct {
	// Replica is namespace/name.
	Replica string `json:"replica"`
	Problem string `json:"problem"`
}
