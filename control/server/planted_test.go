package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/server/client"
)

// planted is looked for in everything that is shown, logged and recorded, as it is and encoded.
const planted = "planted-secret-4711"

// lines collects what is logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func tells(text string, secrets ...string) string {
	for _, s := range secrets {
		for _, form := range []string{s, base64.StdEncoding.EncodeToString([]byte(s)), base64.RawURLEncoding.EncodeToString([]byte(s)), hex.EncodeToString([]byte(s))} {
			// Where it stands in what was encoded may shift base64 by up to two characters.
			if strings.Contains(text, form) || len(form) > 8 && strings.Contains(text, strings.TrimRight(form, "=")[:len(form)-4]) {
				return form
			}
		}
	}
	return ""
}

// Nothing that the API shows to anybody, logs or records has a Secret's value, a token or a key in it; what viewers are
// shown has no environment either, which the store alone has.
func TestPlantedSecretsAreNowhere(t *testing.T) {
	var log lines
	w := startAll(t, func(s *Server) {
		s.config.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	w.known.config = map[string][]proto.Message{"SDS": {
		&tlsv3.Secret{Name: "default", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: planted}},
			Password: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: planted}}}}},
		&tlsv3.Secret{Name: "generic", Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secret: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(planted)}}}}},
	}}
	w.known.proxies = []client.ProxyStatus{{NodeID: "n", Namespace: "shop"}}
	ctx := context.Background()
	manifest := shop + fmt.Sprintf(`---
apiVersion: v1
kind: Secret
metadata: { name: keys, namespace: shop, annotations: { kubectl.kubernetes.io/last-applied-configuration: '{"stringData":{"password":"%[1]s"}}' } }
stringData: { password: %[1]s }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: cart, namespace: shop, annotations: { kubectl.kubernetes.io/last-applied-configuration: '{"env":"environment-4711"}' } }
spec: { command: [cart], env: [{ name: PASSWORD, value: environment-4711 }] }
`, planted)
	if _, err := apply(t, w.client, manifest, false); err != nil {
		t.Fatal(err)
	}
	// Refused, with the secret in it.
	if _, err := apply(t, w.client, strings.Replace(manifest, "stringData:", "strinData:", 1), false); err == nil || tells(err.Error(), planted) != "" {
		t.Errorf("%v", err)
	}
	made, err := w.client.MakeAPIToken(ctx, client.APITokenRequest{Role: "editor", Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.Split(made.Token, ".")[2]
	// Shown where tokens do not belong: in the path, in the query, in the body, misspelt.
	for _, path := range []string{"/" + made.Token, "/heddle/v1/audit?who=" + made.Token, "/heddle/v1/tokens/" + made.Token} {
		for _, c := range []*client.Client{w.client, w.as(t, stranger, "")} {
			_ = c.Do(ctx, http.MethodGet, path, nil, nil)
		}
	}
	w.binds(t, "viewer", "*")
	for who, c := range map[string]*client.Client{"root": w.client, "a viewer": w.as(t, bob, ""), "nobody": w.as(t, stranger, ""), "the token": w.as(t, stranger, made.Token)} {
		for _, e := range everything {
			if e.method != http.MethodGet || strings.Contains(e.path, "watch=1") || strings.Contains(e.path, "/agent/") {
				continue
			}
			for _, path := range []string{e.path, "/api/v1/namespaces/shop/secrets/keys", "/apis/heddle.io/v1alpha1/workloads", "/apis/heddle.io/v1alpha1/namespaces/shop/workloads/cart"} {
				text := ""
				body, err := c.Open(ctx, e.method, path, nil)
				if err != nil {
					text = err.Error()
				} else {
					content, err := io.ReadAll(body)
					body.Close()
					if text = string(content); err != nil {
						t.Fatal(err)
					}
				}
				if form := tells(text, planted, secret); form != "" {
					t.Errorf("%s is shown %s at %s: %s", who, form, path, text)
				}
				if form := tells(text, "environment-4711"); form != "" && who == "a viewer" {
					t.Errorf("%s is shown %s at %s: %s", who, form, path, text)
				}
			}
		}
	}
	// A watch sends what it is about from where it is told to begin.
	if text := watched(t, w); tells(text, planted, "environment-4711") != "" {
		t.Errorf("a viewer's watch: %s", text)
	}
	if form := tells(log.String(), planted, secret, "environment-4711"); form != "" {
		t.Errorf("the log tells %s: %s", form, log.String())
	}
	err = filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		inStore := strings.HasPrefix(path, filepath.Join(w.dir, "store"))
		if form := tells(string(content), secret, planted); form != "" || !inStore && tells(string(content), "environment-4711") != "" {
			t.Errorf("%s tells %s", path, form)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// watched is what a viewer's watch of all workloads tells of one that was written before.
func watched(t *testing.T, w *world) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	body, err := w.as(t, bob, "").Open(ctx, http.MethodGet, "/apis/heddle.io/v1alpha1/workloads?watch=1&resourceVersion=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	var first json.RawMessage
	if err := json.NewDecoder(body).Decode(&first); err != nil || !strings.Contains(string(first), "PASSWORD") {
		t.Fatalf("%s %v", first, err)
	}
	return string(first)
}
