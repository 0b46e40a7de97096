package cli

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store/etcd"
)

// store decides where objects are kept. A cluster that was made stays with its kind of store: what is in one is not in the
// other.
func (o upOptions) store(c cluster.Cluster, before cluster.Etcd, kept bool) (cluster.Etcd, error) {
	for _, flag := range []struct{ name, value string }{{"etcd-endpoints", o.etcd.Endpoints}, {"etcd-cacert", o.etcd.CACert}, {"etcd-cert", o.etcd.Cert}, {"etcd-key", o.etcd.Key}} {
		if o.given(flag.name) && flag.value == "" {
			return cluster.Etcd{}, usageError{fmt.Errorf("--%s is empty: a variable that is not set? Leave the flag out to keep what the cluster has", flag.name)}
		}
	}
	want := cluster.Etcd{Endpoints: cmp.Or(o.etcd.Endpoints, before.Endpoints)}
	for _, file := range []struct {
		given, before string
		to            *string
	}{{o.etcd.CACert, before.CACert, &want.CACert}, {o.etcd.Cert, before.Cert, &want.Cert}, {o.etcd.Key, before.Key, &want.Key}} {
		*file.to = file.before
		if file.given != "" {
			path, err := filepath.Abs(file.given)
			if err != nil {
				return want, err
			}
			*file.to = path
		}
	}
	if want == before {
		return want, nil
	}
	if kept && (before.Endpoints == "" || want.Endpoints == "") {
		return want, contradiction(c, "--etcd-endpoints", "it was made with a store of its own, whose objects are not in another", "take a backup (`heddle backup FILE`), remove the cluster with `heddle down --name "+c.Name+"`, make it anew with the other store, and restore it (`heddle restore FILE`)")
	}
	if want.Endpoints == "" || want.CACert == "" || want.Cert == "" || want.Key == "" {
		return want, usageError{errors.New("an external etcd needs all of --etcd-endpoints, --etcd-cacert, --etcd-cert and --etcd-key")}
	}
	for _, endpoint := range strings.Split(want.Endpoints, ",") {
		if u, err := url.Parse(endpoint); err != nil || u.Scheme != "https" || u.Port() == "" || u.Path != "" {
			return want, usageError{fmt.Errorf("--etcd-endpoints: %q: give https://HOST:PORT of each member, separated by commas", endpoint)}
		}
	}
	if err := etcd.ExternalOf(c.Name, want).Check(); err != nil {
		return want, &client.Problem{What: "the etcd cluster cannot be used", Where: "--etcd-endpoints " + want.Endpoints, Why: err.Error(), Remedy: "give files in PEM that root can read"}
	}
	return want, nil
}
