package client

import (
	"context"
	"net/http"
	"time"
)

// AuthorityStatus tells what a cluster's certificates hang on.
type AuthorityStatus struct {
	Cluster string `json:"cluster"`
	// Primary of the mesh, where the root is.
	Primary string `json:"primary"`
	// Root that signs, and all Trusted ones, it first.
	Root    Root   `json:"root"`
	Trusted []Root `json:"trusted"`
	// Elsewhere says that the root was not made by the primary, and Above which root has signed it.
	Elsewhere bool   `json:"elsewhere,omitempty"`
	Above     string `json:"above,omitempty"`
	// Issuer is the cluster's own intermediate.
	Issuer        string    `json:"issuer"`
	IssuerExpires time.Time `json:"issuerExpires"`
	// Requested says that a request of `heddle ca csr` waits for its certificate.
	Requested bool `json:"requested,omitempty"`
	// Change of the root that is under way.
	Change *RootChange `json:"change,omitempty"`
}

// Root of certificates.
type Root struct {
	Subject string `json:"subject"`
	// Hash is the SHA-256 of its public key, hexadecimal.
	Hash    string    `json:"hash"`
	Expires time.Time `json:"expires"`
}

// RootChange is a change of the mesh's root that is under way.
type RootChange struct {
	ID string `json:"id"`
	// Kind is rotate or install; empty at members.
	Kind string `json:"kind,omitempty"`
	// Phase is trust, sign or retire.
	Phase string    `json:"phase"`
	Began time.Time `json:"began"`
	Since time.Time `json:"since"`
	// Awaited is who the next phase waits for.
	Awaited []string `json:"awaited,omitempty"`
}

// AuthorityRequest asks for the request that is to be signed elsewhere.
type AuthorityRequest struct {
	// New has another key made, and another request, than the last time.
	New bool `json:"new,omitempty"`
}

// AuthorityRequested is a certificate request, PEM.
type AuthorityRequested struct {
	Request string `json:"request"`
}

// AuthorityInstall has a certificate taken into use that was signed for the request.
type AuthorityInstall struct {
	// Certificate and the Chain from it to its root, PEM.
	Certificate string `json:"certificate"`
	Chain       string `json:"chain,omitempty"`
}

func (c *Client) authority(ctx context.Context, method, path string, body any) (AuthorityStatus, error) {
	var status AuthorityStatus
	err := c.Do(ctx, method, "/heddle/v1/ca/"+path, body, &status)
	return status, err
}

// Authority tells what the cluster's certificates hang on.
func (c *Client) Authority(ctx context.Context) (AuthorityStatus, error) {
	return c.authority(ctx, http.MethodGet, "status", nil)
}

// RotateRoot begins the change to a new root.
func (c *Client) RotateRoot(ctx context.Context) (AuthorityStatus, error) {
	return c.authority(ctx, http.MethodPost, "rotate", nil)
}

// InstallAuthority begins the change to a root that was signed elsewhere.
func (c *Client) InstallAuthority(ctx context.Context, request AuthorityInstall) (AuthorityStatus, error) {
	return c.authority(ctx, http.MethodPost, "install", request)
}

// AbortRootChange takes a change of the root back.
func (c *Client) AbortRootChange(ctx context.Context) (AuthorityStatus, error) {
	return c.authority(ctx, http.MethodPost, "abort", nil)
}

// RequestAuthority gets the certificate request for the mesh's authority.
func (c *Client) RequestAuthority(ctx context.Context, request AuthorityRequest) (AuthorityRequested, error) {
	var answer AuthorityRequested
	err := c.Do(ctx, http.MethodPost, "/heddle/v1/ca/csr", request, &answer)
	return answer, err
}
