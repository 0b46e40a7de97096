package server

import (
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

func TestBackupAndRestore(t *testing.T) {
	w := startAll(t)
	apply := func(content string, remove bool) {
		t.Helper()
		if _, err := w.client.Apply(w.ctx, client.ApplyRequest{Manifests: []client.Manifest{{File: "m.yaml", Content: content}}, Delete: remove}); err != nil {
			t.Fatal(err)
		}
	}
	const account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: kept, namespace: shop, labels: {l: before}}\n"
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: tls, namespace: shop}\nstringData: {key: open-sesame}\n"
	apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n"+account+"---\n"+secret, false)
	file, err := w.client.Backup(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(file), "open-sesame") || strings.Contains(string(file), "b3Blbi1zZXNhbWU") {
		t.Error("the secret is in the backup in the clear")
	}
	apply(secret, true)
	apply(strings.Replace(account, "before", "after", 1), false)
	apply(strings.Replace(account, "kept", "later", 1), false)
	restore := func(content []byte, replace bool) (client.RestoreResponse, error) {
		return w.client.Restore(w.ctx, client.RestoreRequest{Backup: content, Replace: replace})
	}
	// It is said before objects are overwritten.
	_, err = restore(file, false)
	wants(t, "without --replace", err, http.StatusConflict, "1 would be changed and 1 deleted")
	damaged := []byte(strings.Replace(string(file), "kept", "keep", 1))
	_, err = restore(damaged, true)
	wants(t, "a damaged file", err, http.StatusUnprocessableEntity, "damaged")
	r, err := restore(file, true)
	if err != nil || r.Created != 1 || r.Changed != 1 || r.Deleted != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	again, err := w.client.Backup(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := restore(again, false); err != nil || r.Created+r.Changed+r.Deleted != 0 {
		t.Errorf("what is there already: %+v, %v", r, err)
	}
	var names []string
	for _, o := range w.server.config.Store.Objects() {
		if o.GetNamespace() == "shop" {
			names = append(names, o.GetName()+o.GetLabels()["l"])
		}
	}
	if len(names) != 2 || !strings.Contains(strings.Join(names, " "), "keptbefore") {
		t.Errorf("%v", names)
	}
	log := read(t, filepath.Join(w.dir, "audit", "audit.log"))
	if !strings.Contains(log, `"backup"`) || !strings.Contains(log, `"restore"`) {
		t.Errorf("not recorded: %s", log)
	}
	// Another cluster's, and one whose secrets another key sealed.
	w.server.config.Cluster = "d"
	_, err = restore(file, true)
	wants(t, "another cluster's", err, http.StatusConflict, `of cluster "c"`)
	w.server.config.Cluster = "c"
	_, err = startAll(t).client.Restore(w.ctx, client.RestoreRequest{Backup: file, Replace: true})
	wants(t, "another key", err, http.StatusUnprocessableEntity, "secrets.key")
}

// Only who may do everything may take everything away.
func TestBackupsAreForAdmins(t *testing.T) {
	for _, path := range []string{"GET /heddle/v1/backup", "POST /heddle/v1/restore"} {
		w := startAll(t)
		made, err := w.client.MakeAPIToken(w.ctx, client.APITokenRequest{Role: access.Editor.String(), Namespace: access.Everywhere})
		if err != nil {
			t.Fatal(err)
		}
		method, where, _ := strings.Cut(path, " ")
		editor := client.With(client.Options{Socket: filepath.Join(w.dir, "api.sock"), Token: made.Token})
		wants(t, path, editor.Do(w.ctx, method, where, nil, nil), http.StatusForbidden)
	}
}

// A token that was revoked after the backup stays revoked, and one that was made since then stays.
func TestRestoreLeavesTokensAlone(t *testing.T) {
	w := startAll(t)
	token := func() client.APITokenResponse {
		t.Helper()
		made, err := w.client.MakeAPIToken(w.ctx, client.APITokenRequest{Role: access.Viewer.String(), Namespace: access.Everywhere})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	before := token()
	file, err := w.client.Backup(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.client.RevokeAPIToken(w.ctx, before.ID); err != nil {
		t.Fatal(err)
	}
	since := token()
	if _, err := w.client.Restore(w.ctx, client.RestoreRequest{Backup: file, Replace: true}); err != nil {
		t.Fatal(err)
	}
	all, err := w.client.APITokens(w.ctx)
	if err != nil || len(all) != 1 || all[0].ID != since.ID {
		t.Errorf("%+v, %v", all, err)
	}
}

// What is restored is checked as what is applied is: who would be refused today stops it, and what is privileged is not
// forced either.
func TestRestoreIsAdmitted(t *testing.T) {
	w := startAll(t)
	restored := func(file []byte, force bool) error {
		t.Helper()
		_, err := w.client.Restore(w.ctx, client.RestoreRequest{Backup: file, Replace: true, Force: force})
		return err
	}
	backup := func(content string) []byte {
		t.Helper()
		if _, err := apply(t, w.client, content, false); err != nil {
			t.Fatal(err)
		}
		file, err := w.client.Backup(w.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.Apply(w.ctx, client.ApplyRequest{Manifests: []client.Manifest{{File: "shop.yaml", Content: content}}, Delete: true}); err != nil {
			t.Fatal(err)
		}
		return file
	}
	w.server.config.PrivilegedWorkloads = true
	privileged := backup(shop + "---\n" + rooted)
	w.server.config.PrivilegedWorkloads = false
	for _, force := range []bool{false, true} {
		wants(t, "privileged", restored(privileged, force), http.StatusUnprocessableEntity, "nothing was restored", "does not allow it", access.LabelPrivileged)
	}
	if _, err := w.server.config.Store.Get(w.ctx, objects.Key{Kind: "Namespace", Name: "shop"}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("something was restored: %v", err)
	}
	// A cluster that was removed from the mesh since is a member again only when somebody says so.
	file := backup(shop)
	member := &objects.Object{Kind: objects.Cluster, Resource: &v1alpha1.Cluster{TypeMeta: metav1.TypeMeta{APIVersion: "heddle.io/v1alpha1", Kind: "Cluster"}, ObjectMeta: metav1.ObjectMeta{Name: "removed"}, Spec: v1alpha1.ClusterSpec{Key: "k"}}}
	if err := w.server.config.Store.Apply(w.ctx, []store.Write{{Key: member.Key(), Object: member}}); err != nil {
		t.Fatal(err)
	}
	with := backup("apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n")
	if err := w.server.config.Store.Apply(w.ctx, []store.Write{{Key: member.Key()}}); err != nil {
		t.Fatal(err)
	}
	wants(t, "a member that was removed", restored(with, false), http.StatusUnprocessableEntity, "Cluster/removed", "--force")
	if err := restored(with, true); err != nil {
		t.Fatal(err)
	}
	// Nor is one removed that has joined since.
	if err := restored(file, true); err != nil {
		t.Fatal(err)
	}
	if _, err := w.server.config.Store.Get(w.ctx, member.Key()); err != nil {
		t.Errorf("a member that has joined since: %v", err)
	}
	if log := read(t, filepath.Join(w.dir, "audit", "audit.log")); !strings.Contains(log, "deleted, forced") {
		t.Errorf("not recorded: %s", log)
	}
}
