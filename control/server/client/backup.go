package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// RestoreRequest asks to make the objects what a backup says.
type RestoreRequest struct {
	// Backup is the file.
	Backup []byte `json:"backup"`
	// Replace says that objects may be changed and deleted that are there.
	Replace bool `json:"replace,omitempty"`
	// Force says that objects are stored that would be refused if they were applied now, workloads apart that ask for more than
	// their namespaces allow.
	Force bool `json:"force,omitempty"`
}

// RestoreResponse says what was restored.
type RestoreResponse struct {
	// Taken is when the backup was, and Version of the program that wrote it.
	Taken   time.Time `json:"taken"`
	Version string    `json:"version"`
	// Created, Changed and Deleted are numbers of objects.
	Created int `json:"created"`
	Changed int `json:"changed"`
	Deleted int `json:"deleted"`
}

// Backup returns the content of a backup file.
func (c *Client) Backup(ctx context.Context) ([]byte, error) {
	body, err := c.Open(ctx, http.MethodGet, "/heddle/v1/backup", nil)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	content, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("receive backup: %w", err)
	}
	return content, nil
}

// Restore makes the objects what a backup says.
func (c *Client) Restore(ctx context.Context, request RestoreRequest) (RestoreResponse, error) {
	var response RestoreResponse
	err := c.Do(ctx, http.MethodPost, "/heddle/v1/restore", request, &response)
	return response, err
}
