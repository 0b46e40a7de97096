package server

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/server/client"
)

func (s *Server) handleWhoAmI(w http.ResponseWriter, r *http.Request) {
	caller := access.From(r.Context())
	who := client.Who{Caller: caller.String(), From: caller.From, Groups: caller.Groups, Grants: []client.Grant{}}
	for _, g := range caller.Grants {
		who.Grants = append(who.Grants, client.Grant{Role: g.Role.String(), Namespace: g.Namespace})
	}
	reply(w, who)
}

func (s *Server) handleMakeToken(w http.ResponseWriter, r *http.Request) {
	var request client.APITokenRequest
	err := decode(r, &request)
	if err == nil {
		err = s.authenticator.Tokens.Check(request)
	}
	if err != nil {
		refuseError(w, "no token was made", "", err)
		return
	}
	caller := access.From(r.Context())
	if !s.may(w, r, access.Need{Role: access.Admin, Namespace: request.Namespace, To: "make tokens"}) {
		return
	}
	if caller.Kind == access.KindToken {
		s.deny(w, r, &client.Problem{Status: http.StatusForbidden, What: caller.String() + " may not make tokens", Why: "they would outlive the token that made them",
			Remedy: "make it as a user of the cluster's machine, or by a client certificate"})
		return
	}
	var response client.APITokenResponse
	err = s.recorded(r.Context(), audit.Record{Action: audit.CreateToken, Detail: "role " + request.Role + ", for " + request.Note,
		Objects: []audit.Object{{Name: "Namespace/" + request.Namespace}}}, func() (string, error) {
		var err error
		response, err = s.authenticator.Tokens.Make(r.Context(), request, caller.String())
		return "id " + response.ID, err
	})
	if err != nil {
		refuseError(w, "no token was made", "", err)
		return
	}
	s.config.Log.Info("API token made", "id", response.ID, "role", response.Role, "namespace", response.Namespace, "by", caller.String())
	reply(w, response)
}

func (s *Server) handleTokens(w http.ResponseWriter, r *http.Request) {
	all, err := s.authenticator.Tokens.List(r.Context())
	if err != nil {
		refuseError(w, "tokens not listed", "", err)
		return
	}
	caller := access.From(r.Context())
	out := []client.APIToken{}
	for _, t := range all {
		if caller.Grants.In(t.Namespace) >= access.Admin {
			out = append(out, t)
		}
	}
	reply(w, out)
}

func (s *Server) handleRevokeToken(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	token, err := s.authenticator.Tokens.Find(r.Context(), id)
	if err != nil {
		refuseError(w, "token not revoked", "", err)
		return
	}
	if !s.may(w, r, access.Need{Role: access.Admin, Namespace: token.Namespace, To: "revoke tokens"}) {
		return
	}
	err = s.recorded(r.Context(), audit.Record{Action: audit.RevokeToken, Detail: "id " + token.ID + ", role " + token.Role,
		Objects: []audit.Object{{Name: "Namespace/" + token.Namespace}}}, func() (string, error) { return "", s.authenticator.Tokens.Revoke(r.Context(), token.ID) })
	if err != nil {
		refuseError(w, "token not revoked", id, err)
		return
	}
	reply(w, token)
}

// handleAudit sends records of the audit log, one JSON value per line.
func (s *Server) handleAudit(w http.ResponseWriter, r *http.Request) {
	filter, err := readFilter(r.URL.Query())
	if err != nil {
		refuseError(w, "audit log not read", r.URL.RawQuery, err)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	sent := false
	err = s.config.Audit.Read(r.Context(), filter, func(line []byte) error {
		sent = true
		_, err := w.Write(line)
		return err
	})
	if err != nil && !sent {
		refuseError(w, "audit log not read", "", err)
	} else if err != nil {
		// The reader must not take a part for the whole.
		panic(http.ErrAbortHandler)
	}
}

func readFilter(q url.Values) (client.AuditFilter, error) {
	f := client.AuditFilter{Who: q.Get("who"), What: q.Get("what"), Refused: q.Get("refused") != ""}
	var err error
	if text := q.Get("since"); text != "" {
		if f.Since, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return f, &client.Problem{Status: http.StatusBadRequest, What: "since is not a time", Where: text, Remedy: "write it as 2006-01-02T15:04:05Z"}
		}
	}
	if text := q.Get("limit"); text != "" {
		if f.Limit, err = strconv.Atoi(text); err != nil || f.Limit < 0 {
			return f, &client.Problem{Status: http.StatusBadRequest, What: "limit is not a number of records", Where: text}
		}
	}
	return f, nil
}
