package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

// sealing is the store, if it encrypts Secrets by itself; otherwise it is said who does.
func (s *Server) sealing(w http.ResponseWriter) (store.Sealing, bool) {
	if s.config.Sealing == nil {
		refuse(w, &client.Problem{Status: http.StatusNotImplemented, What: "this cluster does not encrypt Secrets by itself", Why: "its objects are in a store that does, or does not",
			Remedy: "see the store's own documentation on encryption at rest"})
	}
	return s.config.Sealing, s.config.Sealing != nil
}

// handleSecrets says with which keys Secrets are sealed.
func (s *Server) handleSecrets(w http.ResponseWriter, r *http.Request) {
	sealing, ok := s.sealing(w)
	if !ok {
		return
	}
	status, err := sealing.SecretsStatus(r.Context())
	if err != nil {
		refuseError(w, "the encryption of Secrets cannot be told", "", err)
		return
	}
	reply(w, status)
}

// handleRotateSecrets seals Secrets with a new key.
func (s *Server) handleRotateSecrets(w http.ResponseWriter, r *http.Request) {
	sealing, ok := s.sealing(w)
	if !ok {
		return
	}
	var status seal.Status
	err := s.recorded(r.Context(), audit.Record{Action: audit.RotateSecrets}, func() (string, error) {
		var err error
		// Who asked may go away; what has begun is finished all the same.
		status, err = sealing.RotateSecrets(context.WithoutCancel(r.Context()), true)
		if err != nil || len(status.Keys) == 0 {
			return "", err
		}
		newest := status.Keys[len(status.Keys)-1]
		return fmt.Sprintf("key %s, %d Secrets", newest.ID, newest.Secrets), nil
	})
	if err != nil {
		refuseError(w, "Secrets are not all encrypted anew", status.File, fmt.Errorf("%w; what is done stays, run the command again", err))
		return
	}
	reply(w, status)
}

// handleDiscard gives up a batch that waits for a key which is lost.
func (s *Server) handleDiscard(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	response := client.DiscardResponse{ID: id, Left: []string{}}
	err := s.recorded(r.Context(), audit.Record{Action: audit.DiscardBatch, Detail: "batch " + id}, func() (string, error) {
		left, err := s.config.Store.Discard(r.Context(), id)
		for _, key := range left {
			response.Left = append(response.Left, key.String())
		}
		return fmt.Sprintf("%d objects left out", len(left)), err
	})
	if errors.Is(err, store.ErrNotFound) {
		refuse(w, &client.Problem{Status: http.StatusNotFound, What: "nothing was given up", Where: "batch " + id, Why: "no batch of that name waits for a key", Remedy: "`heddle check` names those that do; others are finished by themselves"})
		return
	}
	if err != nil {
		refuseError(w, "nothing was given up", "batch "+id, err)
		return
	}
	reply(w, response)
}
