package agent

import (
	"context"
	"errors"
	"net/http"
	"sort"
	"sync"
	"time"

	"heddle.io/heddle/control/agent/identity"
	"heddle.io/heddle/control/server/client"
)

// rotateTimeout bounds a rotation of all certificates, with time for a signer that is slow.
const rotateTimeout = 30 * time.Second

// preparing is how long a rotation waits for what an agent that has just started prepares: its proxies may run already,
// with the certificates of the agent before.
const preparing = 5 * time.Second

var errNoIdentity = errors.New("it has no identity yet")

// rotate renews the certificates of all replicas that are not of a generation yet, and returns when each has been renewed, has
// failed or has had its time. What was signed stays for the next attempt.
func (a *Agent) rotate(ctx context.Context, generation string) client.Rotation {
	ctx, cancel := context.WithTimeout(ctx, rotateTimeout)
	defer cancel()
	var mu sync.Mutex
	var result client.Rotation
	if !a.awaitComplete(ctx) {
		result.Failed = append(result.Failed, client.RotationFailure{Replica: "*", Problem: errIncomplete.Error()})
	}
	var group sync.WaitGroup
	for _, r := range a.all() {
		group.Go(func() {
			err := r.renew(ctx, func(c *identity.Credential) error { return c.Reach(ctx, generation) })
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				result.Failed = append(result.Failed, client.RotationFailure{Replica: r.spec.key(), Problem: err.Error()})
				return
			}
			result.Renewed++
		})
	}
	group.Wait()
	sort.Slice(result.Failed, func(i, j int) bool { return result.Failed[i].Replica < result.Failed[j].Replica })
	a.log.Info("certificates renewed", "renewed", result.Renewed, "failed", len(result.Failed))
	a.dirty()
	return result
}

// awaitComplete waits until all replicas are known.
func (a *Agent) awaitComplete(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, preparing)
	defer cancel()
	for {
		complete, changed := a.complete()
		if complete {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

var errProxyAway = errors.New("its proxy runs, and has not come back to the agent yet")

// renew gets the replica a new certificate, by how. A proxy that runs has to be connected: one that an agent before this one left
// behind has what that one gave it, and would not be waited for.
func (r *replica) renew(ctx context.Context, how func(*identity.Credential) error) error {
	prepared, cancel := context.WithTimeout(ctx, preparing)
	defer cancel()
	for {
		r.mu.Lock()
		credential, changed := r.credential, r.changed
		away := r.proxy != nil && r.proxy.Running()
		var streams <-chan struct{}
		if r.socket != nil {
			var connected bool
			connected, streams = r.socket.Connected()
			away = away && !connected
		}
		r.mu.Unlock()
		missing := errNoIdentity
		if credential != nil {
			if !away {
				return how(credential)
			}
			missing = errProxyAway
		}
		select {
		case <-changed:
		case <-streams:
			// They change nothing of the replica.
		case <-prepared.Done():
			return missing
		}
	}
}

func (a *Agent) handleRotate(w http.ResponseWriter, r *http.Request) {
	found := a.replicaOf(w, r)
	if found == nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), rotateTimeout)
	defer cancel()
	switch err := found.renew(ctx, func(c *identity.Credential) error { return c.Renew(ctx) }); {
	case errors.Is(err, errNoIdentity):
		refuse(w, &client.Problem{Status: http.StatusConflict, What: "the replica has no identity yet", Where: found.spec.key(), Remedy: "try again once it is ready"})
	case err != nil:
		refuse(w, &client.Problem{Status: http.StatusBadGateway, What: "the certificate was not renewed", Where: found.spec.key(), Why: err.Error(),
			Remedy: "the replica keeps the one it has; see `heddle logs --controller`"})
	default:
		answer(w, map[string]string{"status": "renewed"})
	}
}
