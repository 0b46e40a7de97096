package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestHidden(t *testing.T) {
	root := t.TempDir()
	link, real := filepath.Join(root, "keys", "secrets.key"), filepath.Join(root, "moved", "secrets.key")
	if err := errors.Join(os.Mkdir(filepath.Dir(link), 0o700), os.Mkdir(filepath.Dir(real), 0o700), os.WriteFile(real, nil, 0o600), os.Symlink(real, link)); err != nil {
		t.Fatal(err)
	}
	c := Cluster{Name: "c", RunRoot: "/run/heddle", DataRoot: "/var/lib/heddle"}
	own := []string{"/run/heddle", "/var/lib/heddle"}
	programs := filepath.Join(root, "programs", "bin")
	proxy, proxyLink := filepath.Join(root, "envoy", "envoy"), filepath.Join(root, "links", "envoy")
	for _, path := range []string{filepath.Join(programs, "heddle"), proxy} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Dir(proxyLink), 0o755), os.Symlink(proxy, proxyLink)); err != nil {
		t.Fatal(err)
	}
	settings := filepath.Join(root, "settings")
	if err := os.Symlink("/etc", settings); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		options Options
		// want are the directories beside the cluster's own, shown what an error says, and gateways whether only their proxy is in the way.
		want     []string
		shown    string
		gateways bool
	}{
		"nothing else":             {Options{}, nil, "", false},
		"keys of Secrets":          {Options{SecretsKeyFile: "/etc/heddle/secrets.key"}, []string{"/etc/heddle"}, "", false},
		"the key for etcd":         {Options{Etcd: Etcd{Key: "/etc/etcd/pki/client.key"}}, []string{"/etc/etcd/pki"}, "", false},
		"both in one":              {Options{SecretsKeyFile: "/etc/heddle/k", Etcd: Etcd{Key: "/etc/heddle/e"}}, []string{"/etc/heddle"}, "", false},
		"a link":                   {Options{SecretsKeyFile: link}, []string{filepath.Dir(link), filepath.Dir(real)}, "", false},
		"among settings":           {Options{SecretsKeyFile: "/etc/secrets.key"}, nil, "--secrets-key-file /etc/secrets.key: workloads do not see the directory of this file, and they or their proxies need /etc;", false},
		"one of two":               {Options{SecretsKeyFile: "/etc/secrets.key", Etcd: Etcd{Key: "/etc/etcd/e"}}, []string{"/etc/etcd"}, "need /etc;", false},
		"among certificates":       {Options{Etcd: Etcd{Key: "/etc/ssl/certs/client.key"}}, nil, "--etcd-key /etc/ssl/certs/client.key", false},
		"among libraries":          {Options{SecretsKeyFile: "/usr/lib/x/secrets.key"}, nil, "/usr/lib/x;", false},
		"at the root":              {Options{SecretsKeyFile: "/secrets.key"}, nil, "need /;", false},
		"beside the programs":      {Options{SecretsKeyFile: filepath.Join(programs, "secrets.key")}, nil, programs + ";", false},
		"above the programs":       {Options{SecretsKeyFile: filepath.Join(root, "programs", "secrets.key")}, nil, filepath.Join(root, "programs") + ";", false},
		"elsewhere in their way":   {Options{SecretsKeyFile: filepath.Join(root, "programs", "keys", "k")}, []string{filepath.Join(root, "programs", "keys")}, "", false},
		"of a like name":           {Options{SecretsKeyFile: programs + "-keys/k"}, []string{programs + "-keys"}, "", false},
		"beside a link to a proxy": {Options{SecretsKeyFile: filepath.Join(filepath.Dir(proxyLink), "k")}, nil, filepath.Dir(proxyLink) + ";", false},
		"where such a link leads":  {Options{SecretsKeyFile: filepath.Join(filepath.Dir(proxy), "k")}, nil, filepath.Dir(proxy) + ";", false},
		"by a link to settings":    {Options{SecretsKeyFile: filepath.Join(settings, "secrets.key")}, nil, "need " + settings + ";", false},
		"beside the gateways' proxy": {
			Options{SecretsKeyFile: filepath.Join(root, "gateways", "k"), GatewayProxy: filepath.Join(root, "gateways", "bin", "envoy")}, nil, filepath.Join(root, "gateways") + ";", true,
		},
	} {
		got := c.Hidden(test.options, programs, proxyLink, "")
		if want := append(slices.Clone(own), test.want...); !slices.Equal(got.Dirs, want) {
			t.Errorf("%s: %v, want %v", name, got.Dirs, want)
		}
		if (test.shown != "") != (len(got.Shown) == 1) || test.shown != "" && (!strings.Contains(got.Shown[0].Error(), test.shown) || got.Shown[0].GatewayProxy != test.gateways) {
			t.Errorf("%s: %+v, want %q", name, got.Shown, test.shown)
		}
	}
}

// A program that would not be there where it is to run says which option hides it, also one that a link leads to.
func TestProgramsThatAreHidden(t *testing.T) {
	root := t.TempDir()
	c := Cluster{Name: "c", RunRoot: filepath.Join(root, "run"), DataRoot: filepath.Join(root, "data")}
	keys, link := filepath.Join(root, "keys"), filepath.Join(root, "links", "app")
	program := filepath.Join(keys, "bin", "app")
	if err := errors.Join(os.MkdirAll(filepath.Dir(program), 0o755), os.WriteFile(program, nil, 0o755), os.Mkdir(filepath.Dir(link), 0o755), os.Symlink(program, link)); err != nil {
		t.Fatal(err)
	}
	hidden := c.Hidden(Options{SecretsKeyFile: filepath.Join(keys, "secrets.key")})
	for path, want := range map[string]string{
		program: "--secrets-key-file", link: "--secrets-key-file", filepath.Join(c.DataRoot, "app"): "the cluster's own files",
		keys + "-app": "", "/bin/sh": "",
	} {
		if err := hidden.Refuse(path); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
