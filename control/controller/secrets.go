package controller

import (
	"context"
	"time"

	"heddle.io/heddle/control/objects"
)

// keysInterval is how often keys are read again while there are Secrets that cannot be decrypted.
const keysInterval = 5 * time.Second

// secretsLoop ends a rotation of keys that an earlier controller began, and looks for the keys of Secrets that cannot be
// decrypted: their file is restored, or the service that unwraps them answers again.
func (c *Controller) secretsLoop(ctx context.Context) {
	sealing := c.sealing
	if sealing == nil {
		return
	}
	if status, err := sealing.SecretsStatus(ctx); err == nil && status.Rotating {
		if _, err := sealing.RotateSecrets(ctx, false); err != nil && ctx.Err() == nil {
			c.log.Warn("an earlier rotation of the keys of Secrets is not at its end", "error", err, "remedy", "heddle secrets rotate")
		}
	}
	tick := time.NewTicker(keysInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !c.unreadable() {
			continue
		}
		changed, err := sealing.ReloadKeys(ctx)
		if err != nil {
			c.log.Warn("the keys of Secrets cannot be read", "error", err)
			continue
		}
		if !changed {
			continue
		}
		if err := c.store.Reread(ctx, objects.Secret); err != nil {
			c.log.Warn("Secrets are not read with the keys that were found; trying again", "error", err)
		}
	}
}

// unreadable says that an object's content cannot be read.
func (c *Controller) unreadable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.objects {
		if o.Unreadable != "" {
			return true
		}
	}
	return false
}
