package controller

import (
	"context"
	"time"
)

// How often what workloads were seen to use is kept, and how often it is looked at what they do not use any more.
const (
	keepDependencies   = time.Second
	expireDependencies = time.Hour
)

// dependenciesLoop keeps what workloads were seen to use, and has them do without what they have not used for long. What was
// learned in the last second before a controller dies is asked for again by the proxies that use it.
func (c *Controller) dependenciesLoop(ctx context.Context) {
	keep, expire := time.NewTicker(keepDependencies), time.NewTicker(expireDependencies)
	defer keep.Stop()
	defer expire.Stop()
	failing := false
	for {
		last := false
		select {
		case <-ctx.Done():
			last = true
		case <-expire.C:
			c.pusher.Forget()
		case <-keep.C:
		}
		err := c.dependencies.Save()
		if err != nil && !failing {
			c.log.Warn("what workloads use is not kept: proxies that begin after a restart of the controller learn it anew", "error", err)
		}
		if failing = err != nil; last {
			return
		}
	}
}
