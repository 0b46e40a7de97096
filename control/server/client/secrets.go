package client

import (
	"context"
	"net/http"
	"net/url"

	"heddle.io/heddle/control/seal"
)

// Secrets says with which keys Secrets are encrypted, and which cannot be decrypted.
func (c *Client) Secrets(ctx context.Context) (seal.Status, error) {
	var status seal.Status
	err := c.Do(ctx, http.MethodGet, "/heddle/v1/secrets", nil, &status)
	return status, err
}

// RotateSecrets has all Secrets encrypted with a new key.
func (c *Client) RotateSecrets(ctx context.Context) (seal.Status, error) {
	var status seal.Status
	err := c.Do(ctx, http.MethodPost, "/heddle/v1/secrets/rotate", nil, &status)
	return status, err
}

// DiscardResponse says what was given up.
type DiscardResponse struct {
	// ID of the batch.
	ID string `json:"id"`
	// Left are the objects that are not as the batch would have them; none can be named of one that could not be decrypted.
	Left []string `json:"left"`
}

// Discard gives up a batch that waits for a key which is lost for good.
func (c *Client) Discard(ctx context.Context, id string) (DiscardResponse, error) {
	var response DiscardResponse
	err := c.Do(ctx, http.MethodDelete, "/heddle/v1/batches/"+url.PathEscape(id), nil, &response)
	return response, err
}
