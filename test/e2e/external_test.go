//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/store/etcd/etcdtest"
	"heddle.io/heddle/test/e2e/harness"
)

// elsewhere is a cluster whose objects are in an external etcd, with the command that starts it.
func elsewhere(t *testing.T) (*etcdtest.Members, []string) {
	t.Helper()
	withoutCluster(t)
	m := etcdtest.Start(t)
	// Nothing of it is left for the cluster that comes back.
	t.Cleanup(func() { must(t, "down", "--name", clusterName, "--purge") })
	return m, []string{"up", "--name", clusterName, "--etcd-endpoints", m.Etcd.Endpoints, "--etcd-cacert", m.Etcd.CACert, "--etcd-cert", m.Etcd.Cert, "--etcd-key", m.Etcd.Key}
}

// keysFile is where the keys of Secrets are of a cluster that names no other file.
var keysFile = filepath.Join("/var/lib/heddle", clusterName, "store", "secrets.key")

func password(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: { name: %s, namespace: default }\nstringData: { password: planted }\n", name)
}

// decrypted demands that all Secrets can be read.
func decrypted(t *testing.T, when string) {
	t.Helper()
	if out, err := heddle("secrets", "status"); err != nil || !strings.Contains(out, "encrypted, and can be decrypted") {
		t.Errorf("%s: %v\n%s", when, err, out)
	}
}

// The keys of a store elsewhere are kept as long as its Secrets are, whatever the cluster was in between; without them that is
// said where people look, with the remedy, and the remedy works.
func TestKeysOfAStoreElsewhereOutliveTheCluster(t *testing.T) {
	_, up := elsewhere(t)
	must(t, up...)
	first := harness.WriteFile(t, password("first"))
	must(t, "apply", "-f", first)
	decrypted(t, "at first")
	if out := must(t, "down", "--name", clusterName); !strings.Contains(out, "The keys of Secrets are kept in "+keysFile) || !strings.Contains(out, "--purge") {
		t.Errorf("down said\n%s", out)
	}

	// A cluster of that name with a store of its own uses the same file, and takes nothing from it.
	must(t, "up", "--name", clusterName)
	must(t, "apply", "-f", harness.WriteFile(t, password("own")))
	must(t, "secrets", "rotate")
	decrypted(t, "in a store of its own")
	if out := must(t, "get", "secrets", "-n", "default"); strings.Contains(out, "first") {
		t.Errorf("a store of its own has what the other one holds:\n%s", out)
	}
	must(t, "down", "--name", clusterName)
	if _, err := os.Stat(keysFile); err != nil {
		t.Fatalf("the keys of the other store went with a cluster that did not use them: %v", err)
	}

	must(t, up...)
	decrypted(t, "back in the first store")
	if out := must(t, "describe", "secret", "first", "-n", "default"); strings.Contains(out, "Undecryptable") {
		t.Error(out)
	}
	must(t, "check", "--wait", "60s")

	must(t, "down", "--name", clusterName, "--purge")
	if _, err := os.Stat(keysFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the keys are there after --purge: %v", err)
	}
	must(t, up...)
	if out, err := heddle("secrets", "status"); err == nil || !strings.Contains(out, "default/first") {
		t.Errorf("without the keys: %v\n%s", err, out)
	}
	if out := must(t, "describe", "secret", "first", "-n", "default"); !strings.Contains(out, "Undecryptable") {
		t.Errorf("without the keys:\n%s", out)
	}
	if out, err := heddle("check", "--wait", "0"); err == nil || !strings.Contains(out, "heddle secrets rotate") {
		t.Errorf("without the keys, check says %v\n%s", err, out)
	}
	if out, err := heddle("apply", "-f", first); err == nil || !strings.Contains(out, "heddle secrets rotate") {
		t.Errorf("a Secret is written without a key: %v\n%s", err, out)
	}
	if out, err := heddle("secrets", "rotate"); err == nil || !strings.Contains(out, "default/first") {
		t.Errorf("the rotation says that all is well, or not why: %v\n%s", err, out)
	}
	must(t, "apply", "-f", first)
	decrypted(t, "applied again")
	must(t, "check", "--wait", "60s")
}

// A batch of Secrets that was interrupted, and whose key is lost for good, is told of until it is given up; what is applied
// again then is whole.
func TestABatchWhoseKeyIsLostIsGivenUp(t *testing.T) {
	m, up := elsewhere(t)
	must(t, up...)
	const secrets = 1500
	var batch strings.Builder
	for n := range secrets {
		fmt.Fprintf(&batch, "---\n%s", password(fmt.Sprintf("batch-%d", n)))
	}
	file := harness.WriteFile(t, batch.String())
	client := m.Client(t)
	prefix := "/clusters/" + clusterName + "/heddle/"
	written := client.Watch(t.Context(), prefix+"objects/core/Secret/spec/default/batch-", clientv3.WithPrefix())
	applied := make(chan error, 1)
	go func() {
		for {
			_, err := heddle("apply", "-f", file)
			// On a busy machine the members elect anew now and then.
			if err == nil || !strings.Contains(err.Error(), "nothing was changed") || t.Context().Err() != nil {
				applied <- err
				return
			}
		}
	}()
	select {
	case event := <-written:
		if err := event.Err(); err != nil {
			t.Fatal(err)
		}
	case err := <-applied:
		t.Fatalf("applied before anything was written: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("nothing is written")
	}
	// Two of three members go, in the middle of it, and the cluster goes with its keys before they are back.
	m.Kill(0)
	m.Kill(1)
	if err := <-applied; err == nil {
		t.Fatal("the batch was made before the members were gone")
	}
	must(t, "down", "--name", clusterName, "--purge")
	m.Restart(0)
	m.Restart(1)
	harness.Eventually(t, 30*time.Second, "the members answer", func() error {
		got, err := client.Get(t.Context(), prefix+"objects/core/Secret/spec/default/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil && (got.Count == 0 || got.Count == secrets) {
			t.Fatalf("%d of %d Secrets are written: no batch was interrupted", got.Count, secrets)
		}
		return err
	})
	must(t, up...)
	var id string
	harness.Eventually(t, 30*time.Second, "the batch is told of", func() error {
		out, err := heddle("check", "--wait", "0")
		found := regexp.MustCompile("interrupted batch ([0-9a-f-]+) waits: .*`heddle secrets discard ([0-9a-f-]+)`").FindStringSubmatch(out)
		if err == nil || found == nil || found[1] != found[2] {
			return fmt.Errorf("%w\n%s", err, out)
		}
		id = found[1]
		return nil
	})
	// Others are not held up by it.
	must(t, "apply", "-f", harness.WriteFile(t, "apiVersion: v1\nkind: ServiceAccount\nmetadata: { name: beside, namespace: default }\n"))
	if out, err := heddle("secrets", "discard", "no-such-batch"); err == nil || !strings.Contains(out, "no-such-batch") {
		t.Errorf("a batch that is not there: %v\n%s", err, out)
	}
	if out := must(t, "secrets", "discard", id); !strings.Contains(out, "Batch "+id+" is given up") || !strings.Contains(out, "apply again") {
		t.Errorf("discard said\n%s", out)
	}
	if out := must(t, "audit", "--what", id); !strings.Contains(out, "root") {
		t.Errorf("who gave it up is not recorded:\n%s", out)
	}
	if out, err := heddle("secrets", "rotate"); err == nil || !strings.Contains(out, "cannot be decrypted") {
		t.Errorf("the rotation: %v\n%.2000s", err, out)
	}
	must(t, "apply", "-f", file)
	decrypted(t, "applied again")
	must(t, "check", "--wait", "60s")
	got, err := client.Get(t.Context(), prefix+"records/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || got.Count != 0 {
		t.Errorf("%v records are left, %v", got, err)
	}
}
