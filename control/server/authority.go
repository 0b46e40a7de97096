package server

import (
	"context"
	"net/http"

	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/server/client"
)

// Authority is what the API needs of the mesh's certificate authority.
type Authority interface {
	RootStatus() client.AuthorityStatus
	// RotateRoot begins the change to a new root, InstallRoot that to one that was signed elsewhere for RequestRoot's request,
	// AbortRoot takes a change back.
	RotateRoot(ctx context.Context) error
	RequestRoot(another bool) ([]byte, error)
	InstallRoot(ctx context.Context, certificates, chain []byte) error
	AbortRoot(ctx context.Context) error
}

func (s *Server) handleAuthority(w http.ResponseWriter, _ *http.Request) {
	reply(w, s.config.Federation.RootStatus())
}

// changeRoot answers with how far the change is that it began or took back.
func (s *Server) changeRoot(w http.ResponseWriter, r *http.Request, action audit.Action, do func(context.Context) error) {
	var status client.AuthorityStatus
	err := s.recorded(r.Context(), audit.Record{Action: action}, func() (string, error) {
		// Who asked may go away.
		if err := do(context.WithoutCancel(r.Context())); err != nil {
			return "", err
		}
		status = s.config.Federation.RootStatus()
		if status.Change == nil {
			return "", nil
		}
		return "change " + status.Change.ID, nil
	})
	if err != nil {
		refuseError(w, "the mesh's root was not changed", "", err)
		return
	}
	reply(w, status)
}

func (s *Server) handleRotateRoot(w http.ResponseWriter, r *http.Request) {
	s.changeRoot(w, r, audit.RotateRoot, s.config.Federation.RotateRoot)
}

func (s *Server) handleAbortRoot(w http.ResponseWriter, r *http.Request) {
	s.changeRoot(w, r, audit.AbortRoot, s.config.Federation.AbortRoot)
}

func (s *Server) handleInstallRoot(w http.ResponseWriter, r *http.Request) {
	var request client.AuthorityInstall
	if err := decode(r, &request); err != nil {
		refuseError(w, "the certificate was not installed", "", err)
		return
	}
	s.changeRoot(w, r, audit.InstallRoot, func(ctx context.Context) error {
		return s.config.Federation.InstallRoot(ctx, []byte(request.Certificate), []byte(request.Chain))
	})
}

func (s *Server) handleRequestRoot(w http.ResponseWriter, r *http.Request) {
	var request client.AuthorityRequest
	var answer []byte
	err := decode(r, &request)
	if err == nil {
		err = s.recorded(r.Context(), audit.Record{Action: audit.RequestRoot}, func() (string, error) {
			var err error
			answer, err = s.config.Federation.RequestRoot(request.New)
			return "", err
		})
	}
	if err != nil {
		refuseError(w, "no request was made", "", err)
		return
	}
	reply(w, client.AuthorityRequested{Request: string(answer)})
}
