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
	for name, test := range map[string]struct {
		options Options
		want    []string
		problem string
	}{
		"nothing else":           {Options{}, own, ""},
		"keys of Secrets":        {Options{SecretsKeyFile: "/etc/heddle/secrets.key"}, append(slices.Clone(own), "/etc/heddle"), ""},
		"the key for etcd":       {Options{Etcd: Etcd{Key: "/etc/etcd/pki/client.key"}}, append(slices.Clone(own), "/etc/etcd/pki"), ""},
		"both in one":            {Options{SecretsKeyFile: "/etc/heddle/k", Etcd: Etcd{Key: "/etc/heddle/e"}}, append(slices.Clone(own), "/etc/heddle"), ""},
		"a link":                 {Options{SecretsKeyFile: link}, append(slices.Clone(own), filepath.Dir(link), filepath.Dir(real)), ""},
		"among settings":         {Options{SecretsKeyFile: "/etc/secrets.key"}, nil, "--secrets-key-file /etc/secrets.key: workloads do not see the directory of this file, and they need /etc;"},
		"among certificates":     {Options{Etcd: Etcd{Key: "/etc/ssl/certs/client.key"}}, nil, "--etcd-key /etc/ssl/certs/client.key"},
		"among libraries":        {Options{SecretsKeyFile: "/usr/lib/x/secrets.key"}, nil, "/usr/lib/x;"},
		"at the root":            {Options{SecretsKeyFile: "/secrets.key"}, nil, "they need /;"},
		"beside the programs":    {Options{SecretsKeyFile: "/opt/heddle/bin/secrets.key"}, nil, "/opt/heddle/bin;"},
		"above the programs":     {Options{SecretsKeyFile: "/opt/heddle/secrets.key"}, nil, "/opt/heddle;"},
		"elsewhere in their way": {Options{SecretsKeyFile: "/opt/heddle/keys/secrets.key"}, append(slices.Clone(own), "/opt/heddle/keys"), ""},
	} {
		got, err := c.Hidden(test.options, "/opt/heddle/bin")
		switch {
		case test.problem != "" && (err == nil || !strings.Contains(err.Error(), test.problem)):
			t.Errorf("%s: %v %v, want %q", name, got, err, test.problem)
		case test.problem == "" && (err != nil || !slices.Equal(got, test.want)):
			t.Errorf("%s: %v %v, want %v", name, got, err, test.want)
		}
	}
}
