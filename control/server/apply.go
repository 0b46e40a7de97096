package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

// keptAnnotations belong to commands, not to manifests: applying a file that does not mention them leaves them.
var keptAnnotations = []string{"heddle.io/stopped", "heddle.io/restarted-at"}

// builtinNamespaces exist in every cluster and cannot be deleted.
var builtinNamespaces = []string{"default", cluster.GatewayNamespace}

func (s *Server) handleApply(w http.ResponseWriter, r *http.Request) {
	var request client.ApplyRequest
	if err := decode(r, &request); err != nil {
		refuseError(w, "nothing was applied", "", err)
		return
	}
	var all []*objects.Object
	var errs []error
	for _, manifest := range request.Manifests {
		decoded, problems := objects.Decode(strings.NewReader(manifest.Content), manifest.File, request.Namespace)
		all = append(all, decoded...)
		errs = append(errs, problems...)
	}
	if len(errs) > 0 {
		refuse(w, invalid(errs))
		return
	}
	caller := access.From(r.Context())
	b := batch{verb: audit.Apply, claimed: claimed(caller, request.User), dryRun: request.DryRun, ignoreMissing: request.IgnoreNotFound}
	seen := map[objects.Key]*objects.Object{}
	var skipped []objects.Key
	if request.Delete {
		b.verb = audit.Delete
	}
	for _, o := range all {
		o.Origin.Cluster = s.config.Cluster
		owner, err := s.owner(o)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if owner != s.config.Cluster {
			if request.SkipOthers {
				skipped = append(skipped, o.Key())
			} else {
				errs = append(errs, s.foreign(o, owner))
			}
			continue
		}
		if first, twice := seen[o.Key()]; twice {
			errs = append(errs, &objects.Error{File: o.Origin.File, Line: o.Origin.Line, Object: o.Key(),
				Problem: "is defined twice, first at " + first.Origin.String(), Remedy: "remove one of the two"})
			continue
		}
		seen[o.Key()] = o
		if request.Delete {
			b.deletes = append(b.deletes, o.Key())
		} else {
			b.objects = append(b.objects, o)
		}
	}
	if len(errs) > 0 {
		refuse(w, invalid(errs))
		return
	}
	if len(all) == 0 {
		refuse(w, &client.Problem{Status: http.StatusBadRequest, What: "the manifests hold no objects", Remedy: "give files with at least one object"})
		return
	}
	response, err := s.write(r.Context(), b)
	if err != nil {
		s.refuseWrite(w, r, "nothing was changed", "", err)
		return
	}
	response.Skipped = skipped
	reply(w, response)
}

// batch is a set of changes that are made together.
type batch struct {
	// verb is what is done, and claimed whom the caller says to act for, for the audit log.
	verb    audit.Action
	claimed string
	objects []*objects.Object
	deletes []objects.Key
	// versions that objects must have, as [store.Write] takes them.
	versions      map[objects.Key]objects.Version
	dryRun        bool
	ignoreMissing bool
	// replace takes the objects as they are, without keeping annotations that commands made.
	replace bool
}

// finish makes what is left of interrupted batches, before anything is checked against what is there. One that waits for the
// keys of its Secrets keeps nobody else from writing.
func (s *Server) finish(ctx context.Context) error {
	err := s.config.Store.Finish(ctx)
	if errors.Is(err, seal.ErrNoKey) || errors.Is(err, seal.ErrClosed) {
		return nil
	}
	return err
}

// write checks a batch against what is stored and makes it, whole or not at all.
func (s *Server) write(ctx context.Context, b batch) (client.ApplyResponse, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.finish(ctx); err != nil && (len(b.objects) > 0 || !errors.Is(err, store.ErrFull)) {
		return client.ApplyResponse{}, err // A store that is full has room again once something is deleted.
	}
	stored := s.known()
	response := client.ApplyResponse{DryRun: b.dryRun}
	caller := access.From(ctx)
	if problem := permit(caller, b, stored); problem != nil {
		return response, problem
	}
	for _, o := range b.objects {
		o.Origin.User = cmp.Or(b.claimed, caller.Name)
		// Of two that want the same host, address or port, the oldest has it: nobody makes himself older than he is.
		o.SetCreationTimestamp(metav1.Time{})
	}
	if errs := append(s.protect(b, stored), s.confine(b, stored)...); len(errs) > 0 {
		return response, invalid(errs)
	}
	writes, results, err := s.deletions(b, stored)
	if err != nil {
		return response, err
	}
	response.Results = results
	for _, o := range b.objects {
		if old := stored.object(o.Key()); old != nil && !b.replace {
			keepAnnotations(o, old)
		}
		writes = append(writes, store.Write{Key: o.Key(), Object: o, IfVersion: b.versions[o.Key()]})
	}
	writes, found, errs := s.config.Controller.Admit(writes)
	if len(errs) > 0 {
		return response, invalid(errs)
	}
	warnings := warningTexts(found)
	now := metav1.NewTime(s.config.Now().UTC().Truncate(1e9))
	made := writes[:0:0]
	for _, w := range writes {
		if w.Object == nil {
			made = append(made, w)
			continue
		}
		old := stored.object(w.Key)
		changed := old == nil || old.Unreadable != "" || !same(old, w.Object)
		uid, err := uuid.NewRandom()
		if err != nil {
			return response, fmt.Errorf("make identifier: %w", err)
		}
		known := old
		if old != nil && old.Unreadable != "" {
			known = nil
		}
		objects.SetCreated(w.Object, known, now, uid.String(), changed)
		result := client.Result{Key: w.Key, Action: client.ActionUnchanged, Warnings: warnings[w.Key]}
		switch {
		case old == nil:
			result.Action = client.ActionCreated
		case changed:
			result.Action = client.ActionConfigured
			w.Object.Status = old.Status
		}
		if changed {
			made = append(made, w)
		}
		response.Results = append(response.Results, result)
	}
	if b.dryRun || len(made) == 0 {
		return response, nil
	}
	err = s.recorded(ctx, audit.Record{Action: b.verb, For: b.claimed, Objects: changesOf(made, response.Results)}, func() (string, error) {
		return "", s.config.Store.Apply(ctx, made)
	})
	if err != nil {
		return response, err
	}
	s.config.Log.Info("objects written", "changes", len(made))
	return response, nil
}

// changesOf gives the changes of a batch, for the audit log.
func changesOf(made []store.Write, results []client.Result) []audit.Object {
	of := make(map[objects.Key]string, len(results))
	for _, r := range results {
		of[r.Key] = r.Action
	}
	out := make([]audit.Object, 0, len(made))
	for _, w := range made {
		out = append(out, audit.Object{Name: w.Key.String(), Action: of[w.Key]})
	}
	return out
}

// claimed is whom a caller says to act for. Only root is believed, as far as to write it down: the user behind sudo.
func claimed(caller *access.Caller, user string) string {
	if caller.Agent() {
		return user
	}
	return ""
}

// refuseWrite answers a change that was not made, and records it when the caller has not the role.
func (s *Server) refuseWrite(w http.ResponseWriter, r *http.Request, what, where string, err error) {
	var problem *client.Problem
	if errors.As(err, &problem) && problem.Status == http.StatusForbidden {
		s.deny(w, r, problem)
		return
	}
	refuseError(w, what, where, err)
}

// deletions expands a batch's deletions: a namespace takes what is in it along.
func (s *Server) deletions(b batch, stored known) ([]store.Write, []client.Result, error) {
	var writes []store.Write
	var results []client.Result
	gone := map[objects.Key]bool{}
	remove := func(key objects.Key) {
		if !gone[key] {
			gone[key] = true
			writes = append(writes, store.Write{Key: key})
			results = append(results, client.Result{Key: key, Action: client.ActionDeleted})
		}
	}
	for _, key := range b.deletes {
		if stored.object(key) == nil {
			if b.ignoreMissing || gone[key] {
				continue
			}
			return nil, nil, &client.Problem{Status: http.StatusNotFound, What: "not found", Where: key.String(), Remedy: "nothing was deleted; --ignore-not-found passes over what does not exist"}
		}
		if err := s.mayDelete(key); err != nil {
			return nil, nil, err
		}
		if key.Kind == objects.Namespace.Kind && key.Group == objects.Namespace.Group {
			for _, name := range builtinNamespaces {
				if key.Name == name {
					return nil, nil, &client.Problem{Status: http.StatusForbidden, What: fmt.Sprintf("namespace %q belongs to the cluster and cannot be deleted", name)}
				}
			}
			for _, o := range stored.in(key.Name) {
				remove(o.Key())
			}
		}
		remove(key)
	}
	return writes, results, nil
}

func keepAnnotations(o, old *objects.Object) {
	for _, name := range keptAnnotations {
		value, had := old.GetAnnotations()[name]
		if _, has := o.GetAnnotations()[name]; had && !has {
			annotations := map[string]string{name: value}
			for k, v := range o.GetAnnotations() {
				annotations[k] = v
			}
			o.SetAnnotations(annotations)
		}
	}
}

// same says whether two objects say the same, apart from what the store writes into them.
func same(a, b *objects.Object) bool {
	x, xErr := content(a)
	y, yErr := content(b)
	return xErr == nil && yErr == nil && bytes.Equal(x, y)
}

func content(o *objects.Object) ([]byte, error) {
	bare := o.DeepCopy()
	bare.SetUID("")
	bare.SetResourceVersion("")
	bare.SetGeneration(0)
	bare.SetCreationTimestamp(metav1.Time{})
	bare.SetManagedFields(nil)
	if len(bare.GetAnnotations()) == 0 {
		bare.SetAnnotations(nil)
	}
	if len(bare.GetLabels()) == 0 {
		bare.SetLabels(nil)
	}
	return json.Marshal(bare.Resource)
}

// reasonNoAddress is how the model says that a global name waits for its virtual address.
const reasonNoAddress = "NoAddress"

// warningTexts say, by object, what works less than its author may think: names of objects that do not exist, and fields
// without effect.
func warningTexts(found map[objects.Key]resolve.Warnings) map[objects.Key][]string {
	out := map[objects.Key][]string{}
	for key, w := range found {
		for _, f := range w.Unresolved {
			if f.Reason == reasonNoAddress {
				continue // It gets one when it is stored.
			}
			out[key] = append(out[key], f.String())
		}
		for _, f := range w.Fields {
			out[key] = append(out[key], f.Path+": "+f.Message)
		}
	}
	return out
}

// invalid is the answer to a batch with errors.
func invalid(errs []error) *client.Problem {
	problem := &client.Problem{Status: http.StatusUnprocessableEntity, What: fmt.Sprintf("nothing was changed: %d errors", len(errs)), Remedy: "correct them and try again"}
	if len(errs) == 1 {
		problem.What = "nothing was changed: 1 error"
		problem.Remedy = "correct it and try again"
	}
	for _, err := range errs {
		var e *objects.Error
		if errors.As(err, &e) {
			problem.Errors = append(problem.Errors, *e)
		} else {
			problem.Errors = append(problem.Errors, objects.Error{Problem: err.Error()})
		}
	}
	return problem
}
