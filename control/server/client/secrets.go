package client

import (
	"context"
	"net/http"

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
