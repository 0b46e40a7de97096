package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"
)

// APIToken is what is known of a token for the API: GET /heddle/v1/tokens lists them.
type APIToken struct {
	ID string `json:"id"`
	// Note is what its maker called it.
	Note string `json:"note,omitempty"`
	Role string `json:"role"`
	// Namespace that the role is for, "*" for all.
	Namespace string    `json:"namespace"`
	MadeBy    string    `json:"madeBy"`
	Made      time.Time `json:"made"`
	Expires   time.Time `json:"expires"`
}

// APITokenRequest asks for a token: POST /heddle/v1/tokens.
type APITokenRequest struct {
	Note      string `json:"note,omitempty"`
	Role      string `json:"role"`
	Namespace string `json:"namespace"`
	// TTL is how long it can be used. Default a day, at most a year.
	TTL time.Duration `json:"ttl,omitempty"`
}

// APITokenResponse is the only time that the token is told.
type APITokenResponse struct {
	APIToken
	Token string `json:"token"`
}

// Grant is a role in a namespace, "*" for all.
type Grant struct {
	Role      string `json:"role"`
	Namespace string `json:"namespace"`
}

// Who is how the API knows its caller: GET /heddle/v1/whoami.
type Who struct {
	// Caller is its kind and name, From where the request came from.
	Caller string   `json:"caller"`
	From   string   `json:"from"`
	Groups []string `json:"groups,omitempty"`
	Grants []Grant  `json:"grants"`
}

// APIServer is by what remote callers know a cluster's API: GET /heddle/v1/ca.
type APIServer struct {
	Cluster string `json:"cluster"`
	// ServerName is the DNS name in its certificate that no other cluster can have.
	ServerName string `json:"serverName"`
	// Roots are the mesh's root certificates, PEM.
	Roots string `json:"roots"`
	// Address is where it is served over TLS; invalid when it is not.
	Address netip.AddrPort `json:"address,omitzero"`
}

// APIServer tells by what remote callers know the cluster's API.
func (c *Client) APIServer(ctx context.Context) (APIServer, error) {
	var server APIServer
	err := c.Do(ctx, http.MethodGet, "/heddle/v1/ca", nil, &server)
	return server, err
}

// AuditSeries tells of one series of the audit log's files.
type AuditSeries struct {
	// Name is "changes", "signings" or "refusals".
	Name string `json:"name"`
	// Oldest is the time of its oldest record, absent when it has none.
	Oldest *time.Time `json:"oldest,omitempty"`
	// FilesRemoved since the controller started, because there were too many.
	FilesRemoved uint64 `json:"filesRemoved"`
}

// AuditFilter chooses records of the audit log: GET /heddle/v1/audit. What is empty matches everything.
type AuditFilter struct {
	// Who is a part of the caller's name, What of the action or of an object's name.
	Who, What string
	// Since is the time of the oldest record.
	Since time.Time
	// Limit is how many are given, the newest; 0 for all.
	Limit int
	// Refused chooses what was refused to callers without the role, in place of what was done.
	Refused bool
}

// Query is the filter as the API reads it.
func (f AuditFilter) Query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"who": f.Who, "what": f.What} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if !f.Since.IsZero() {
		q.Set("since", f.Since.UTC().Format(time.RFC3339Nano))
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	if f.Refused {
		q.Set("refused", "1")
	}
	return q
}

// WhoAmI tells how the API knows this client.
func (c *Client) WhoAmI(ctx context.Context) (Who, error) {
	var who Who
	err := c.Do(ctx, http.MethodGet, "/heddle/v1/whoami", nil, &who)
	return who, err
}

// MakeAPIToken makes a token for the API.
func (c *Client) MakeAPIToken(ctx context.Context, request APITokenRequest) (APITokenResponse, error) {
	var response APITokenResponse
	err := c.Do(ctx, http.MethodPost, "/heddle/v1/tokens", request, &response)
	return response, err
}

// APITokens lists the tokens that the caller may manage.
func (c *Client) APITokens(ctx context.Context) ([]APIToken, error) {
	var tokens []APIToken
	err := c.Do(ctx, http.MethodGet, "/heddle/v1/tokens", nil, &tokens)
	return tokens, err
}

// RevokeAPIToken ends a token.
func (c *Client) RevokeAPIToken(ctx context.Context, id string) error {
	return c.Do(ctx, http.MethodDelete, "/heddle/v1/tokens/"+url.PathEscape(id), nil, nil)
}

// Audit calls f for each record of the audit log that the filter chooses, oldest first, as the JSON that is in the log.
func (c *Client) Audit(ctx context.Context, filter AuditFilter, f func(json.RawMessage) error) error {
	body, err := c.Open(ctx, http.MethodGet, "/heddle/v1/audit?"+filter.Query().Encode(), nil)
	if err != nil {
		return err
	}
	defer body.Close()
	lines := bufio.NewReader(body)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the audit log ends early: %w", err)
		}
		if err := f(line); err != nil {
			return err
		}
	}
}
