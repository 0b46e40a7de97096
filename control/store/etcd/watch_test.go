package etcd

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"heddle.io/heddle/control/objects"
)

// silent is a watcher of etcd's client that never says that it has ended.
type silent struct{ clientv3.Watcher }

func (silent) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan {
	return make(clientv3.WatchChan)
}

// A watch ends with its context, whatever etcd's client does: a controller that ends waits for its watches.
func TestWatchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	events, ended := (&Store{client: &clientv3.Client{Watcher: silent{}}}).Watch(ctx, objects.Service, "1")
	cancel()
	select {
	case _, more := <-events:
		if more {
			t.Error("an event of nothing")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
	}
	if err := ended(); err != nil {
		t.Error(err)
	}
}
