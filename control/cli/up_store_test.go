package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"heddle.io/heddle/control/cluster"
)

// What --etcd-* say is checked before anything is kept, and a cluster stays with its kind of store.
func TestExternalStoreIsChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "no.pem")
	if err := os.WriteFile(file, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	external := cluster.Etcd{Endpoints: "https://192.0.2.1:2379", CACert: "/ca", Cert: "/cert", Key: "/key"}
	c := cluster.Cluster{Name: "c"}
	for _, test := range []struct {
		name          string
		given, before cluster.Etcd
		kept          bool
		problem       string
	}{
		{"nothing", cluster.Etcd{}, cluster.Etcd{}, true, ""},
		{"as it was", cluster.Etcd{}, external, true, ""},
		{"the same again", external, external, true, ""},
		{"without certificates", cluster.Etcd{Endpoints: "https://192.0.2.1:2379"}, cluster.Etcd{}, false, "needs all of"},
		{"without endpoints", cluster.Etcd{Key: file}, cluster.Etcd{}, false, "needs all of"},
		{"in the clear", cluster.Etcd{Endpoints: "http://192.0.2.1:2379", CACert: file, Cert: file, Key: file}, cluster.Etcd{}, false, "https://HOST:PORT"},
		{"no port", cluster.Etcd{Endpoints: "https://192.0.2.1", CACert: file, Cert: file, Key: file}, cluster.Etcd{}, false, "https://HOST:PORT"},
		{"no certificate", cluster.Etcd{Endpoints: "https://192.0.2.1:2379", CACert: file, Cert: file, Key: file}, cluster.Etcd{}, false, "none in PEM"},
		{"a cluster with a store of its own", external, cluster.Etcd{}, true, "heddle restore"},
		{"other members", cluster.Etcd{Endpoints: "https://192.0.2.2:2379"}, external, true, "etcd cluster cannot be used"},
	} {
		got, err := upOptions{etcd: test.given, given: func(string) bool { return false }}.store(c, test.before, test.kept)
		switch {
		case test.problem == "" && (err != nil || got != test.before):
			t.Errorf("%s: %+v, %v", test.name, got, err)
		case test.problem != "" && (err == nil || !strings.Contains(err.Error(), test.problem)):
			t.Errorf("%s: %v, want %q", test.name, err, test.problem)
		}
	}
}

// An empty value is a variable that was not set, and not "no external store".
func TestEmptyStoreFlagsAreRefused(t *testing.T) {
	for _, flag := range []string{"etcd-endpoints", "etcd-cacert", "etcd-cert", "etcd-key"} {
		_, err := upOptions{given: func(name string) bool { return name == flag }}.store(cluster.Cluster{Name: "c"}, cluster.Etcd{}, false)
		var usage usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), "--"+flag+" is empty") {
			t.Errorf("--%s \"\": %v", flag, err)
		}
	}
}
