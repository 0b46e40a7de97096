//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// users runs the command line as users of the machine who are not root, each with a home of its own.
func users(t *testing.T) func(uid string, environment []string, in string, args ...string) answer {
	t.Helper()
	program := copyForAll(t)
	return func(uid string, environment []string, in string, args ...string) answer {
		return askAs(t, append([]string{"HOME=/nonexistent"}, environment...), in, "setpriv", append([]string{"--reuid", uid, "--regid", uid, "--clear-groups", program}, args...)...)
	}
}

func sleeper(namespace, user string) string {
	return fmt.Sprintf("apiVersion: heddle.io/v1alpha1\nkind: Workload\nmetadata: { name: sleeper, namespace: %s }\nspec: { command: [sleep, \"100000\"]%s }\n", namespace, user)
}

// An editor of a namespace does there what an editor may, and nothing else anywhere; all of it is recorded.
func TestAnEditorOfANamespace(t *testing.T) {
	as := users(t)
	const alice = "12346"
	apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: { name: roles }\n")
	as(alice, nil, "", "get", "services", "-n", "roles").refused(t, 1, "user 12346 may not read services", "needs the role viewer", "heddle access grant viewer --user 12346 -n roles")
	must(t, "access", "grant", "editor", "--user", alice, "-n", "roles")
	t.Cleanup(func() { must(t, "access", "revoke", "editor", "--user", alice, "-n", "roles") })
	if a := as(alice, nil, "", "access", "whoami"); a.code != 0 || !strings.Contains(a.out, "user 12346") || !strings.Contains(a.out, "editor   roles") {
		t.Errorf("%+v", a)
	}
	if a := as(alice, nil, sleeper("roles", ""), "apply", "-f", "-"); a.code != 0 {
		t.Fatalf("%+v", a)
	}
	harness.Eventually(t, 60*time.Second, "the editor's workload", func() error {
		if a := as(alice, nil, "", "ps", "-n", "roles"); !strings.Contains(a.out, "Ready") || strings.Contains(a.out, harness.ShopSpace) {
			return errors.New(a.out + a.err)
		}
		return nil
	})
	for _, user := range []string{", user: root", ", user: \"0\"", ", user: daemon"} {
		as(alice, nil, sleeper("roles", user), "apply", "-f", "-").refused(t, 1, "spec.user", "privileged")
	}
	as(alice, nil, sleeper(harness.ShopSpace, ""), "apply", "-f", "-").refused(t, 1, "needs the role editor", harness.ShopSpace)
	as(alice, nil, "", "get", "secrets", "-A").refused(t, 1, "all namespaces")
	as(alice, nil, "", "access", "grant", "admin", "--user", alice, "-A").refused(t, 1, "needs the role admin")
	as(alice, nil, "", "token", "create", "--role", "editor", "-n", "roles").refused(t, 1, "needs the role admin")
	as(alice, nil, "", "logs", "--controller").refused(t, 1, "needs the role admin")
	as(alice, nil, "", "audit").refused(t, 1, "needs the role admin")
	// What workloads run as is nobody to the API.
	as("65534", nil, "", "get", "services", "-n", "roles").refused(t, 1, "user nobody may not")
	changes := must(t, "audit", "--who", alice)
	if !strings.Contains(changes, "Workload/roles/sleeper created") || !strings.Contains(changes, "unix pid") {
		t.Error(changes)
	}
	if signed := must(t, "audit", "--what", "ns/roles/sa/default"); !strings.Contains(signed, "sign") || !strings.Contains(signed, "serial") {
		t.Error(signed)
	}
	if refused := must(t, "audit", "--refused", "--who", alice); !strings.Contains(refused, "may not") {
		t.Error(refused)
	}
}

// A command line that has nothing but an address, the root and a token works with the cluster, as far as the token goes.
func TestAPIOverTLS(t *testing.T) {
	withoutCluster(t)
	const address = "127.0.0.1:26443"
	must(t, "up", "--name", clusterName, "--api-address", "26443")
	t.Cleanup(func() { must(t, "down", "--name", clusterName) })
	home, err := os.MkdirTemp("/tmp", "heddle-far-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	here := func(args ...string) answer { return ask(t, "", args...) }
	root, token := here("context", "ca"), here("token", "create", "--role", "viewer", "-A", "--ttl", "10m", "-o", "json")
	if root.code != 0 || !strings.Contains(root.err, address) || token.code != 0 {
		t.Fatalf("%+v %+v", root, token)
	}
	_, rest, _ := strings.Cut(token.out, `"token": "`)
	text, _, _ := strings.Cut(rest, `"`)
	_, rest, _ = strings.Cut(token.out, `"id": "`)
	id, _, _ := strings.Cut(rest, `"`)
	for name, content := range map[string]string{"root.pem": root.out, "token": text} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(home, 0o777); err != nil {
		t.Fatal(err)
	}
	as := users(t)
	far := func(in string, args ...string) answer {
		return as("12346", []string{"HOME=" + home, "XDG_CONFIG_HOME=" + home}, in, args...)
	}
	add := []string{"context", "add", "far", "--server", address, "--ca-file", filepath.Join(home, "root.pem"), "--token-file", filepath.Join(home, "token")}
	far("", add...).refused(t, 1, "another cluster, or none, answers there", "api."+clusterName+".clusters.cluster.local")
	if a := far("", append(add, "--tls-server-name", "api."+clusterName+".clusters.cluster.local")...); a.code != 0 || !strings.Contains(a.out, "token "+id) {
		t.Fatalf("%+v", a)
	}
	if info, err := os.Stat(filepath.Join(home, "heddle", "config.yaml")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if a := far("", "get", "namespaces", "--context", "far"); a.code != 0 || !strings.Contains(a.out, "istio-system") {
		t.Errorf("%+v", a)
	}
	far(service("far"), "apply", "-f", "-", "--context", "far").refused(t, 1, "token "+id+" may not create Service/", "needs the role editor")
	// The address is of the cluster's, whichever process answers.
	kill(t, controllerPID(t))
	harness.Eventually(t, 20*time.Second, "the API after a restart", func() error {
		if a := far("", "get", "namespaces", "--context", "far"); a.code != 0 {
			return errors.New(a.err)
		}
		return nil
	})
	must(t, "token", "revoke", id)
	far("", "get", "namespaces", "--context", "far").refused(t, 1, "the token is not known")
}
