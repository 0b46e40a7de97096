package server

import (
	"context"
	"encoding/json"
	"net/http"

	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/server/client"
)

// Federation is what the API needs of the mesh of clusters.
type Federation interface {
	Authority
	// Primary is the mesh's primary: this cluster, unless it is a member.
	Primary() string
	// Joining says that this cluster is about to leave its own mesh for another one.
	Joining() bool
	Status() client.FederationStatus
	// Token makes a join token, Join has this cluster join another one's mesh, Rotate gets it a new intermediate.
	Token(ctx context.Context, request client.TokenRequest) (client.TokenResponse, error)
	Join(ctx context.Context, request client.JoinRequest) (client.FederationStatus, error)
	Rotate(ctx context.Context) (client.FederationStatus, error)
}

// handleNames tells what DNS servers answer, and with watch=1 again after each change, one JSON value per line.
func (s *Server) handleNames(w http.ResponseWriter, r *http.Request) {
	names, changed := s.config.Controller.Names()
	if r.URL.Query().Get("watch") == "" {
		reply(w, names)
		return
	}
	if !take(s.watches, w, r, "watches") {
		return
	}
	defer giveBack(s.watches, r)
	flusher, ok := w.(http.Flusher)
	if !ok {
		refuse(w, &client.Problem{Status: http.StatusInternalServerError, What: "this connection cannot stream"})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	for {
		if err := encoder.Encode(names); err != nil {
			return
		}
		flusher.Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
		names, changed = s.config.Controller.Names()
	}
}

func (s *Server) handleToken(w http.ResponseWriter, r *http.Request) {
	var request client.TokenRequest
	err := decode(r, &request)
	var response client.TokenResponse
	if err == nil {
		err = s.recorded(r.Context(), audit.Record{Action: audit.CreateJoinToken}, func() (string, error) {
			var err error
			response, err = s.config.Federation.Token(r.Context(), request)
			return "", err
		})
	}
	if err != nil {
		refuseError(w, "no join token was made", "", err)
		return
	}
	reply(w, response)
}

func (s *Server) handleJoin(w http.ResponseWriter, r *http.Request) {
	var request client.JoinRequest
	err := decode(r, &request)
	var status client.FederationStatus
	if err == nil {
		// Who asked may go away; a join that has begun is finished all the same.
		err = s.recorded(r.Context(), audit.Record{Action: audit.JoinMesh, Detail: "primary at " + request.Address}, func() (string, error) {
			var err error
			status, err = s.config.Federation.Join(context.WithoutCancel(r.Context()), request)
			return "", err
		})
	}
	if err != nil {
		refuseError(w, "not joined", request.Address, err)
		return
	}
	reply(w, status)
}

func (s *Server) handleRotate(w http.ResponseWriter, r *http.Request) {
	var status client.FederationStatus
	err := s.recorded(r.Context(), audit.Record{Action: audit.RotateIntermediate}, func() (string, error) {
		var err error
		status, err = s.config.Federation.Rotate(context.WithoutCancel(r.Context()))
		return status.Issuer, err
	})
	if err != nil {
		refuseError(w, "intermediate not rotated", "", err)
		return
	}
	reply(w, status)
}
