package translate

import (
	"slices"
	"strings"
	"testing"

	"heddle.io/heddle/control/model"
)

// TestTokenRulesReachRunningSidecars: what is kept of a sidecar's inbound configuration is made anew when a rule for its
// tokens comes, changes or goes, and only then.
func TestTokenRulesReachRunningSidecars(t *testing.T) {
	kinds, err := Kinds(meshOf(web()), node())
	if err != nil {
		t.Fatal(err)
	}
	cache := NewCache()
	inbound := func(mesh *model.Mesh) (string, *Resources) {
		t.Helper()
		for _, k := range kinds {
			if k.Role == Inbound {
				made, err := cache.Make(mesh, k)
				if err != nil {
					t.Fatal(err)
				}
				var text strings.Builder
				for _, l := range made.Listeners {
					text.WriteString(l.String())
				}
				return text.String(), made
			}
		}
		t.Fatal("no inbound kind")
		return "", nil
	}
	with := func(before *model.Mesh, issuers ...string) *model.Mesh {
		mesh := meshOf(before.Services...)
		for _, issuer := range issuers {
			if i := slices.IndexFunc(before.Authentications, func(a *model.Authentication) bool { return a.Name == issuer }); i >= 0 {
				mesh.Authentications = append(mesh.Authentications, before.Authentications[i])
				continue
			}
			mesh.Authentications = append(mesh.Authentications, &model.Authentication{
				Namespace: "shop", Name: issuer, Issuers: []model.TokenIssuer{{Issuer: issuer, Keys: `{"keys":[]}`}},
			})
		}
		return mesh
	}
	none := meshOf(web(func(s *model.Service) { s.Replicas = nil }))
	if text, _ := inbound(none); strings.Contains(text, filterJWT) {
		t.Fatal("tokens are asked for without a rule")
	}
	one := with(none, "issuer-one")
	text, made := inbound(one)
	if !strings.Contains(text, "issuer-one") {
		t.Error("a rule that comes does not reach the sidecar")
	}
	same := with(one, "issuer-one")
	if _, again := inbound(same); again.Listeners[0] != made.Listeners[0] {
		t.Error("the same rule has the listener made anew")
	}
	if text, _ := inbound(with(same, "issuer-two")); !strings.Contains(text, "issuer-two") || strings.Contains(text, "issuer-one") {
		t.Error("a rule that changes does not reach the sidecar")
	}
	if text, _ := inbound(none); strings.Contains(text, filterJWT) {
		t.Error("a rule that goes stays in the sidecar")
	}
}
