package server

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/server/client"
)

// An editor of one namespace who changes the same object over and over is told to wait, and nobody else is.
func TestChangesOfAnEditorAreBounded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can call as somebody else")
	}
	w := startAll(t)
	ctx := context.Background()
	if _, err := apply(t, w.client, shop, false); err != nil {
		t.Fatal(err)
	}
	w.binds(t, "editor", "shop")
	c := w.as(t, bob, "")
	cart := strings.SplitN(shop, "---\n", 2)[1]
	if _, err := apply(t, c, strings.Replace(cart, "port: 80", "port: 81", 1), false); err != nil {
		t.Fatal(err)
	}
	// What it has at once is used up.
	who, err := c.WhoAmI(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.audit.Begin(audit.Record{Caller: who.Caller, Action: audit.Apply, Detail: strings.Repeat("x", 1<<20)}); err != nil {
		t.Fatal(err)
	}
	_, err = apply(t, c, strings.Replace(cart, "port: 80", "port: 82", 1), false)
	wants(t, "the editor", err, http.StatusTooManyRequests, "too many changes", who.Caller, "try again in")
	if _, err := apply(t, w.client, strings.Replace(cart, "port: 80", "port: 83", 1), false); err != nil {
		t.Errorf("root: %v", err)
	}
	token, err := w.client.MakeAPIToken(ctx, client.APITokenRequest{Role: "editor", Namespace: "shop", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := apply(t, w.as(t, bob, token.Token), strings.Replace(cart, "port: 80", "port: 84", 1), false); err != nil {
		t.Errorf("a token: %v", err)
	}
	status, err := w.client.Status(ctx)
	if err != nil || status.Counters["changesRefused"] != 1 || len(status.Audit) != 3 || status.Audit[0].Name != "changes" || status.Audit[0].Oldest == nil {
		t.Errorf("%+v %v", status, err)
	}
}

func TestWhoseRoomChangesTake(t *testing.T) {
	shop := access.Grants{{Role: access.Editor, Namespace: "shop"}}
	for want, callers := range map[string][]*access.Caller{
		"":               {{Kind: access.KindUser, Name: "root"}},
		"user bob":       {{Kind: access.KindUser, Name: "bob", UID: 1000, Grants: shop}},
		"tokens of shop": {{Kind: access.KindToken, Name: "a", UID: -1, Grants: shop}, {Kind: access.KindToken, Name: "b", Note: "other", UID: -1, Grants: shop}},
	} {
		for _, c := range callers {
			if got := charged(c); got != want {
				t.Errorf("%s: %q, want %q", c, got, want)
			}
		}
	}
}
