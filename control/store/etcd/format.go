package etcd

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// format is the layout of keys and values, see keys.go; another one is another number.
const (
	format    = "2"
	formatKey = root + "format"
)

// checkFormat refuses data that another program laid out, and marks an empty store.
func (s *Store) checkFormat(ctx context.Context) error {
	got, err := s.client.Txn(ctx).Then(clientv3.OpGet(formatKey), clientv3.OpGet(root, clientv3.WithPrefix(), clientv3.WithCountOnly())).Commit()
	if err != nil {
		return s.translate(err)
	}
	if kvs := got.Responses[0].GetResponseRange().Kvs; len(kvs) == 1 {
		if found := string(kvs[0].Value); found != format {
			return fmt.Errorf("the store has format %q, and this program knows %q: use the version of heddle that wrote it, or restore a backup", found, format)
		}
		return nil
	}
	if n := got.Responses[1].GetResponseRange().Count; n > 0 {
		return fmt.Errorf("the store has %d keys of an older format: apply the manifests to a new cluster, or use the version of heddle that wrote them", n)
	}
	_, err = s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(formatKey), "=", 0)).Then(clientv3.OpPut(formatKey, format)).Commit()
	if err != nil {
		return s.translate(err)
	}
	return nil
}
