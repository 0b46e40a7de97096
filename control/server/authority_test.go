package server

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/server/client"
)

// authorityStub remembers what it was asked for.
type authorityStub struct {
	asked   []string
	refusal error
}

func (a *authorityStub) RootStatus() client.AuthorityStatus {
	return client.AuthorityStatus{Cluster: "c", Change: &client.RootChange{ID: "0123", Phase: "trust"}}
}

func (a *authorityStub) note(what string) error {
	a.asked = append(a.asked, what)
	return a.refusal
}
func (a *authorityStub) RotateRoot(context.Context) error { return a.note("rotate") }
func (a *authorityStub) AbortRoot(context.Context) error  { return a.note("abort") }
func (a *authorityStub) RequestRoot(another bool) ([]byte, error) {
	if another {
		return []byte("new request"), a.note("csr --new")
	}
	return []byte("request"), a.note("csr")
}
func (a *authorityStub) InstallRoot(_ context.Context, certificates, chain []byte) error {
	return a.note("install " + string(certificates) + " " + string(chain))
}

// Whatever is done to the mesh's authority is recorded, with who did it, before it is done; also what is refused.
func TestChangesOfTheAuthorityAreRecorded(t *testing.T) {
	w := startAll(t)
	stub := &authorityStub{}
	w.mesh.Authority = stub
	ctx := context.Background()
	for _, do := range []func() (client.AuthorityStatus, error){
		func() (client.AuthorityStatus, error) { return w.client.RotateRoot(ctx) },
		func() (client.AuthorityStatus, error) {
			return w.client.InstallAuthority(ctx, client.AuthorityInstall{Certificate: "cert", Chain: "chain"})
		},
		func() (client.AuthorityStatus, error) { return w.client.AbortRootChange(ctx) },
	} {
		if got, err := do(); err != nil || got.Change == nil || got.Change.ID != "0123" {
			t.Errorf("%+v %v", got, err)
		}
	}
	if got, err := w.client.RequestAuthority(ctx, client.AuthorityRequest{New: true}); err != nil || got.Request != "new request" {
		t.Errorf("%+v %v", got, err)
	}
	stub.refusal = &client.Problem{Status: http.StatusConflict, What: "no", Remedy: "wait"}
	if _, err := w.client.RotateRoot(ctx); status(err) != http.StatusConflict {
		t.Error(err)
	}
	if got := strings.Join(stub.asked, ", "); got != "rotate, install cert chain, abort, csr --new, rotate" {
		t.Error(got)
	}
	results := map[string][]string{}
	if err := w.audit.Read(context.Background(), client.AuditFilter{}, func(line []byte) error {
		var r audit.Record
		err := json.Unmarshal(line, &r)
		if strings.HasPrefix(string(r.Action), "root.") {
			results[string(r.Action)] = append(results[string(r.Action)], r.Result)
			if r.Who == "" || r.From == "" {
				t.Errorf("%+v", r)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for action, want := range map[string]string{"root.rotate": "begun done begun failed", "root.install": "begun done", "root.abort": "begun done", "root.request": "begun done"} {
		if got := strings.Join(results[action], " "); got != want {
			t.Errorf("%s: %q, want %q", action, got, want)
		}
	}
}

// Who asks for a certificate for outsiders gets the life that they want, within the authority's.
func TestSigningForOutsiders(t *testing.T) {
	w := startAll(t)
	identity := ca.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}
	_, request, err := ca.NewRequest(identity, ca.ECDSAP256, nil)
	if err != nil {
		t.Fatal(err)
	}
	usual, err := w.client.Sign(t.Context(), identity, request)
	if err != nil {
		t.Fatal(err)
	}
	short, err := w.client.SignOutside(t.Context(), identity, request, ca.WorkloadLifetime/4)
	if err != nil || !short.Expires.Before(usual.Expires.Add(-ca.WorkloadLifetime/2)) {
		t.Errorf("until %s, %s without: %v", short.Expires, usual.Expires, err)
	}
}
