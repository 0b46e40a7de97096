package cli

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/server/client"
)

// farAPI is the API of a cluster of another machine, which knows one token.
type farAPI struct {
	*httptest.Server
	dir   string
	local bool
}

const farToken = "hda1.0123456789abcdef.planted-secret"

func newFarAPI(t *testing.T) *farAPI {
	t.Helper()
	a := &api{}
	e := &farAPI{dir: t.TempDir(), Server: httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+farToken {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprint(w, `{"status":401,"what":"the token is not known","remedy":"ask for one"}`)
			return
		}
		a.ServeHTTP(w, r)
	}))}
	t.Cleanup(e.Close)
	e.file(t, "ca", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.Certificate().Raw})))
	e.file(t, "token", farToken+"\n")
	return e
}

func (e *farAPI) file(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(e.dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (e *farAPI) config() string { return filepath.Join(e.dir, "heddle", "config.yaml") }

// run runs a command line of somebody who has no cluster on this machine, or one.
func (e *farAPI) run(args ...string) (string, int) {
	var out bytes.Buffer
	here := func() []string { return nil }
	if e.local {
		here = func() []string { return []string{"here"} }
	}
	s := &session{in: strings.NewReader(""), out: &out, err: &out, contexts: contextFile{path: e.config(), here: here},
		connect: client.New, now: func() time.Time { return noon }}
	code := s.main(context.Background(), args)
	return out.String(), code
}

func (e *farAPI) add(name string, more ...string) (string, int) {
	return e.run(append([]string{"context", "add", name, "--server", e.URL, "--ca-file", filepath.Join(e.dir, "ca"), "--tls-server-name", "example.com"}, more...)...)
}

func TestRemoteContexts(t *testing.T) {
	e := newFarAPI(t)
	token := filepath.Join(e.dir, "token")
	if out, code := e.add("far", "--token-file", token); code != 0 || !strings.Contains(out, `Context "far" is kept: cluster "shop-cluster"`) || !strings.Contains(out, "you are user alice") {
		t.Fatalf("%d %s", code, out)
	}
	if info, err := os.Stat(e.config()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	all := ""
	for _, c := range []struct {
		args string
		want string
		code int
	}{
		{"get services -n shop", "cart", 0},
		{"get services -n shop --context far", "cart", 0},
		{"access whoami", "You are user alice", 0},
		{"context list", "*         far", 0},
		{"context current", "far", 0},
		{"context use near", "no context is called so", exitError},
		{"get services --context near", `no context "near"`, exitError},
		{"get services --context far --cluster far", "go not together", exitUsage},
		{"down", "of a cluster of another machine", exitError},
		{"get services -n shop --cluster other", "there is no such socket", exitError},
		{"context delete near", "to forget", exitError},
	} {
		out, code := e.run(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%s: %d %s", c.args, code, out)
		}
		all += out
	}
	// The current context is kept when a cluster of this machine becomes another one, and goes with its deletion.
	e.local = true
	if out, code := e.run("context", "use", "here"); code != 0 {
		t.Error(out)
	}
	if out, code := e.run("get", "services", "-n", "shop"); code == 0 || !strings.Contains(out, "there is no such socket") {
		t.Error(out)
	}
	if out, code := e.add("here", "--token-file", token); code != exitUsage || !strings.Contains(out, "runs on this machine") {
		t.Error(out)
	}
	if out, code := e.run("context", "delete", "far"); code != 0 {
		t.Error(out)
	}
	if content, err := os.ReadFile(e.config()); err != nil || strings.Contains(string(content), "planted-secret") || !strings.Contains(string(content), "current: here") {
		t.Errorf("%s %v", content, err)
	}
	if strings.Contains(all, "planted-secret") || strings.Contains(fmt.Sprintf("%v %+v %#v", remoteContext{Token: "planted-secret"}, remoteContext{Token: "planted-secret"}, remoteContext{Token: "planted-secret"}), "planted") {
		t.Errorf("the token was shown: %s", all)
	}
}

func TestContextsAreTriedBeforeTheyAreKept(t *testing.T) {
	e, other := newFarAPI(t), newFarAPI(t)
	token := filepath.Join(e.dir, "token")
	e.file(t, "wrong", "hda1.0123456789abcdef.wrong")
	e.file(t, "empty", "")
	_ = other
	for what, c := range map[string]struct {
		args []string
		want string
	}{
		"a wrong token":    {[]string{"--token-file", filepath.Join(e.dir, "wrong")}, "the token is not known"},
		"another cluster":  {[]string{"--token-file", token, "--tls-server-name", "api.far.clusters.cluster.local"}, "another cluster, or none, answers there"},
		"no root":          {[]string{"--token-file", token, "--ca-file", filepath.Join(e.dir, "empty")}, "it trusts nobody"},
		"no such file":     {[]string{"--token-file", filepath.Join(e.dir, "none")}, "the context was not added"},
		"nobody listens":   {[]string{"--token-file", token, "--server", "127.0.0.1:1"}, "the cluster's API cannot be reached"},
		"without TLS":      {[]string{"--token-file", token, "--server", "http://127.0.0.1:6443"}, "https://HOST:PORT"},
		"a path":           {[]string{"--token-file", token, "--server", "https://127.0.0.1:6443/x"}, "https://HOST:PORT"},
		"a password in it": {[]string{"--token-file", token, "--server", "https://me:planted@127.0.0.1:6443"}, "https://HOST:PORT"},
		"half a pair":      {[]string{"--client-certificate", token}, "say who you are"},
	} {
		out, code := e.add("far", c.args...)
		if code == 0 || !strings.Contains(out, c.want) || strings.Contains(out, "planted") {
			t.Errorf("%s: %d %s", what, code, out)
		}
	}
	if _, err := os.Stat(e.config()); !os.IsNotExist(err) {
		t.Errorf("something was kept: %v", err)
	}
}
