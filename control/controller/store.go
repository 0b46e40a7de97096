package controller

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
	"heddle.io/heddle/control/store/cache"
	"heddle.io/heddle/control/store/etcd"
)

// openStore opens the store and reads everything; take is told of all there is before it returns.
func (c *Controller) openStore(ctx context.Context) (*cache.Cache, error) {
	options, err := c.config.Cluster.Options()
	if err != nil {
		return nil, err
	}
	keys, err := seal.Open(ctx, seal.Options{File: c.config.Cluster.SecretsKey(options), Command: options.KMSCommand, Memory: c.config.KeyMemory})
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(c.config.Cluster.Data(), "store")
	var s *etcd.Store
	if options.Etcd.Endpoints != "" {
		s, err = etcd.OpenExternal(ctx, keys, etcd.ExternalOf(c.config.Cluster.Name, options.Etcd))
	} else {
		s, err = etcd.OpenEmbedded(ctx, dir, keys, nil)
	}
	if err != nil {
		return nil, err
	}
	all, err := cache.Open(ctx, cache.Options{Store: s, Log: c.log, Changed: c.take})
	if err != nil {
		if err := s.Close(); err != nil {
			c.log.Warn("store closed with an error", "error", err)
		}
		return nil, err
	}
	c.sealing, c.keys = s, keys
	return all, nil
}

// take keeps the objects at what the store holds. A batch of this controller's arrives whole.
func (c *Controller) take(events []store.Event) {
	c.bindings.Take(events)
	specs := false
	c.mu.Lock()
	for _, e := range events {
		c.restate(e.Key)
		if e.Key.Group == objects.Namespace.Group && e.Key.Kind == objects.Namespace.Kind && access.AllowsPrivileged(c.objects[e.Key]) != access.AllowsPrivileged(e.Object) {
			for key := range c.objects {
				if key.Namespace == e.Key.Name && key.Group == objects.Workload.Group && key.Kind == objects.Workload.Kind {
					c.restate(key)
				}
			}
		}
		if e.Object == nil {
			delete(c.objects, e.Key)
		} else {
			c.objects[e.Key] = e.Object
		}
		if !e.StatusOnly {
			c.pending[e.Key], specs = true, true
		}
	}
	c.revision += int64(len(events))
	c.mu.Unlock()
	if specs {
		signal(c.changed)
	}
	signal(c.restatus)
}

// problems are what keeps configuration or objects from being as they were asked for; c.mu is held.
func (c *Controller) problems() string {
	var all []string
	if c.problem != "" {
		all = append(all, c.problem)
	}
	keys := c.keys.Status()
	if keys.Problem != "" {
		all = append(all, "keys of Secrets: "+keys.Problem)
	}
	for _, k := range keys.Keys {
		if k.Kept != "" && keys.Problem == "" {
			all = append(all, fmt.Sprintf("key %s of Secrets is in memory only, and lost when the cluster's agent is started again: %s", k.ID, k.Kept))
		}
	}
	if c.overfull != "" {
		all = append(all, c.overfullProblem())
	}
	if n := c.store.Unfinished(); n > 0 {
		all = append(all, fmt.Sprintf("%d interrupted batches wait for the store to be finished", n))
	}
	for _, r := range c.store.Reports() {
		if r.Waits != "" {
			all = append(all, fmt.Sprintf("interrupted batch %s waits: %s; if the key is lost for good, `heddle secrets discard %[1]s` gives the batch up", r.ID, r.Waits))
			continue
		}
		for i, left := range r.Left {
			if i == 3 {
				all = append(all, fmt.Sprintf("and %d more of that batch", len(r.Left)-i))
				break
			}
			all = append(all, fmt.Sprintf("a batch of %s left %s as it is: %s; apply it again", r.Begun.Format("2006-01-02 15:04:05"), left.Key, left.Why))
		}
	}
	return strings.Join(all, "; ")
}
