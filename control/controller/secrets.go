package controller

import (
	"context"
	"slices"
	"time"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
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
	goOn := func() {
		if status, err := sealing.SecretsStatus(ctx); err != nil || !status.Rotating {
			return
		}
		if _, err := sealing.RotateSecrets(ctx, false); err != nil && ctx.Err() == nil {
			c.log.Warn("an earlier rotation of the keys of Secrets is not at its end", "error", err, "remedy", "heddle secrets rotate")
		}
	}
	goOn()
	held := false
	tick := time.NewTicker(keysInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// A rotation keeps the key of a batch that waits, and ends with it.
		switch waiting := c.store.Unfinished() > 0; {
		case waiting:
			held = true
		case held:
			held = false
			goOn()
		}
		known := c.unreadable()
		if known == 0 && !slices.ContainsFunc(c.keys.Status().Keys, func(k seal.KeyStatus) bool { return k.Kept != "" }) {
			continue
		}
		if _, err := sealing.ReloadKeys(ctx); err != nil {
			c.log.Warn("the keys of Secrets cannot be read", "error", err)
			continue
		}
		// What can be read counts, whoever found the keys.
		if known == 0 {
			continue
		}
		if status, err := sealing.SecretsStatus(ctx); err == nil && len(status.Unreadable) < known {
			c.store.Reread(objects.Secret)
		}
	}
}

// unreadable counts the objects whose content cannot be read.
func (c *Controller) unreadable() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, o := range c.objects {
		if o.Unreadable != "" {
			n++
		}
	}
	return n
}
