//go:build e2e

package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/e2e/harness"
)

// buried are the forms in which a secret is looked for.
type buried []string

// bury gives a secret as it is, in hexadecimal, and as every base64 of a text that has it inside.
func bury(secret []byte) buried {
	forms := buried{string(secret), hex.EncodeToString(secret)}
	for shift := range 3 {
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			// The first and last characters depend on what stands around it.
			text := encoding.EncodeToString(append(bytes.Repeat([]byte{'x'}, shift), secret...))
			forms = append(forms, text[4:len(text)-4])
		}
	}
	return forms
}

func (b buried) in(text string) bool {
	for _, form := range b {
		if strings.Contains(text, form) {
			return true
		}
	}
	return false
}

// keyPair makes a certificate for a host. The key's own number, and a line of the file that holds it, are secret.
func keyPair(t *testing.T, host string) (certificate, key string, secrets []buried) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(4711), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	number, err := private.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: inner})
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(text), []buried{bury(number), bury(bytes.Split(text, []byte("\n"))[1])}
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}

// Nothing that any process of the cluster prints, logs, records, dumps or keeps has a Secret's value in it: not the logs of
// controller, agent, DNS, proxies and applications, not what a proxy's admin interface and the command line show, to root or
// to a viewer, not the audit log, not etcd's database and the log that it writes first, no other file of the cluster, no
// process's command line or environment. And a rotation of the keys changes nothing of that, nor of what is served.
func TestPlantedSecretsAreNowhere(t *testing.T) {
	as := users(t)
	const viewer, host, canary = "12347", "planted.example.com", "canary-4711-account"
	certificate, key, secrets := keyPair(t, host)
	password := "planted-secret-4711-password"
	secrets = append(secrets, bury([]byte(password)))
	apply(t, fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: { name: planted, namespace: istio-system }
type: kubernetes.io/tls
stringData:
  tls.crt: |
%s
  tls.key: |
%s
---
apiVersion: v1
kind: Secret
metadata: { name: planted-password, namespace: %s }
stringData: { password: %s }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: %s, namespace: %[3]s }
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: { name: planted, namespace: istio-system }
spec:
  selector: { istio: ingressgateway }
  servers: [{ port: { number: 8443, name: https, protocol: HTTPS }, hosts: [%[6]s], tls: { mode: SIMPLE, credentialName: planted } }]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: { name: planted, namespace: istio-system }
spec:
  hosts: [%[6]s]
  gateways: [planted]
  http: [{ route: [{ destination: { host: frontend.%[3]s.svc.cluster.local, port: { number: 80 } } }] }]
`, indent(certificate), indent(key), harness.ShopSpace, password, canary, host))
	must(t, "access", "grant", "viewer", "--user", viewer, "-A")
	t.Cleanup(func() { must(t, "access", "revoke", "viewer", "--user", viewer, "-A") })
	serves := func() error {
		dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 5 * time.Second}, Config: &tls.Config{ServerName: host, InsecureSkipVerify: true}}
		conn, err := dialer.Dial("tcp", net.JoinHostPort(gateway(t).State.Address, "8443"))
		if err != nil {
			described, _ := heddle("describe", "gateway", "planted", "-n", "istio-system")
			return fmt.Errorf("%w\n%s", err, described)
		}
		defer conn.Close()
		secured, ok := conn.(*tls.Conn)
		if !ok || secured.ConnectionState().PeerCertificates[0].SerialNumber.Int64() != 4711 {
			return errors.New("another certificate is served")
		}
		return nil
	}
	harness.Eventually(t, 30*time.Second, "the ingress serves the certificate", serves)

	tells := func(where, text string) {
		for _, secret := range secrets {
			if secret.in(text) {
				t.Errorf("%s tells a secret:\n%.2000s", where, text)
				return
			}
		}
	}
	look := func(when string) {
		shows := 0
		for _, args := range []string{"get secrets -A -o yaml", "get secrets -A -o json", "get secrets -A -o wide", "describe secret planted -n istio-system", "describe secret planted-password -n " + harness.ShopSpace,
			"describe gateway planted -n istio-system", "get all -A -o yaml", "proxy status", "proxy config istio-ingressgateway -n istio-system -o json", "proxy config istio-ingressgateway -n istio-system --live -o json",
			"proxy config istio-ingressgateway -n istio-system secrets -o json", "logs --controller", "logs --agent", "logs -n istio-system istio-ingressgateway --proxy", "audit -o json", "secrets status -o json", "check --wait 0 -o json",
			"version", "ps -A -o json", "cluster status -o json"} {
			out, err := heddle(strings.Fields(args)...)
			if err == nil {
				shows++
			}
			tells(when+", heddle "+args, out)
			a := as(viewer, nil, "", strings.Fields(args)...)
			tells(when+", heddle "+args+" for a viewer", a.out+a.err)
		}
		if shows < 12 {
			t.Errorf("%s: only %d commands had anything to show", when, shows)
		}
		for _, r := range here.Replicas(t) {
			for _, path := range []string{"config_dump?include_eds", "certs", "clusters?format=json", "listeners", "server_info", "init_dump", "stats", "memory", "help"} {
				out, err := r.InNetwork("curl", "-sS", "--max-time", "10", "http://127.0.0.1:15000/"+path)
				if err != nil {
					t.Errorf("%s: %v %s", r.State.Name, err, out)
				}
				tells(when+", /"+path+" of "+r.State.Name, out)
			}
		}
		seen := false
		for _, root := range []string{"/var/lib/heddle/" + clusterName, "/run/heddle/" + clusterName} {
			err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if errors.Is(err, fs.ErrNotExist) || err == nil && !d.Type().IsRegular() {
					return nil
				}
				if err != nil {
					return err
				}
				content, err := os.ReadFile(path)
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				seen = seen || strings.HasSuffix(path, ".wal") && bytes.Contains(content, []byte(canary))
				tells(when+", "+path, string(content))
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
		if !seen {
			t.Errorf("%s: etcd's log does not show what was surely written, so that it shows no secret proves nothing", when)
		}
		for _, dir := range processDirectories(t) {
			for _, file := range []string{"cmdline", "environ"} {
				content, err := os.ReadFile(filepath.Join(dir, file))
				if err == nil {
					tells(when+", "+filepath.Join(dir, file), string(content))
				}
			}
		}
	}
	look("before")
	before := regexp.MustCompile(`(?m)^[0-9a-f]{8} `).FindString(must(t, "secrets", "status"))
	after := must(t, "secrets", "rotate")
	if before == "" || strings.Contains(after, before) || !strings.Contains(after, "encrypted, and can be decrypted") {
		t.Errorf("key %q, then\n%s", before, after)
	}
	harness.Eventually(t, 10*time.Second, "the ingress goes on serving the certificate", serves)
	must(t, "check")
	look("after a rotation")

	// A key that is lost is told of at once where people look, and taken up when it is back.
	const file = secretsKeys
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	back := func() {
		if err := os.Rename(file+".away", file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	t.Cleanup(back)
	kill(t, controllerPID(t))
	harness.Eventually(t, 30*time.Second, "the loss is told of", func() error {
		out, err := heddle("check", "--wait", "0")
		if err == nil || !strings.Contains(out, "the file is missing") {
			return fmt.Errorf("%w\n%s", err, out)
		}
		if out, err := heddle("secrets", "status"); err == nil || !strings.Contains(out, "from memory until") {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	// The agent has kept what the controller before could read.
	if err := serves(); err != nil {
		t.Errorf("the ingress without the file of keys: %v", err)
	}
	if out := must(t, "describe", "secret", "planted-password", "-n", harness.ShopSpace); strings.Contains(out, "Undecryptable") {
		t.Error(out)
	}
	look("without the file of keys")
	back()
	harness.Eventually(t, 30*time.Second, "the ingress serves the certificate", serves)
	must(t, "check", "--wait", "60s")
}

// processDirectories are the directories in /proc of all that belong to the cluster.
func processDirectories(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		group, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err == nil && strings.Contains(string(group), "heddle") && strings.Contains(string(group), clusterName) {
			found = append(found, dir)
		}
	}
	if len(found) < 10 {
		t.Errorf("only %d processes of the cluster were found", len(found))
	}
	return found
}
