package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

// target is what a path names.
type target struct {
	kind            *objects.Kind
	namespace, name string
}

// parsePath reads Kubernetes' paths: /api/v1/… and /apis/<group>/<version>/…, then [namespaces/<namespace>/]<plural>
// [/<name>].
func parsePath(path string) (target, error) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var group, version string
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		group, version, parts = parts[1], parts[2], parts[3:]
	default:
		return target{}, notFound(path, "use /api/v1/<kind> or /apis/<group>/<version>/<kind>")
	}
	var t target
	if parts[0] == "namespaces" && len(parts) > 2 {
		t.namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 2 {
		return target{}, notFound(path, "")
	}
	for _, k := range objects.Kinds {
		if k.Group == group && slices.Contains(k.Versions, version) && k.Plural == parts[0] {
			t.kind = k
		}
	}
	if t.kind == nil {
		return target{}, notFound(path, "`heddle get --help` lists the kinds")
	}
	if len(parts) == 2 {
		t.name = parts[1]
	}
	if t.kind.Namespaced && t.name != "" && t.namespace == "" || !t.kind.Namespaced && t.namespace != "" {
		return target{}, notFound(path, "namespaced objects are below namespaces/<namespace>, others are not")
	}
	return t, nil
}

func notFound(path, remedy string) error {
	return &client.Problem{Status: http.StatusNotFound, What: "the API has no such path", Where: path, Remedy: remedy}
}

func (t target) key() objects.Key {
	return objects.Key{Group: t.kind.Group, Kind: t.kind.Kind, Namespace: t.namespace, Name: t.name}
}

// needOfObjects is what a request for objects needs by its path. Changes may need more, which depends on what is in them:
// see permit.
func needOfObjects(r *http.Request) access.Need {
	t, err := parsePath(r.URL.Path)
	switch {
	case err != nil:
		return access.Need{Role: access.Viewer, Somewhere: true, To: "use objects"}
	case r.Method == http.MethodGet:
		return t.toRead()
	case r.Method == http.MethodDelete:
		return needOf(t.key(), "delete")
	case t.kind.Namespaced && t.namespace == "":
		return access.Need{Role: needOf(t.key(), "write").Role, Somewhere: true, To: "write " + t.kind.Plural}
	}
	return needOf(t.key(), "write")
}

// toRead is what reading it needs.
func (t target) toRead() access.Need {
	n := access.Need{Role: access.Viewer, Namespace: t.namespace, To: "read " + t.kind.Plural}
	if t.kind == objects.Namespace && t.name != "" {
		n.Namespace = t.name
	}
	if n.Namespace == "" {
		n.Namespace, n.To = access.Everywhere, n.To+" of all namespaces"
	}
	return n
}

func (s *Server) handleObjects(w http.ResponseWriter, r *http.Request) {
	t, err := parsePath(r.URL.Path)
	if err != nil {
		refuseError(w, "no such object", r.URL.Path, err)
		return
	}
	switch {
	case r.Method == http.MethodGet && t.name != "":
		s.get(w, r, t)
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		s.watch(w, r, t)
	case r.Method == http.MethodGet:
		s.list(w, r, t)
	case (r.Method == http.MethodPut && t.name != "") || (r.Method == http.MethodPost && t.name == ""):
		s.put(w, r, t)
	case r.Method == http.MethodDelete && t.name != "":
		response, err := s.write(r.Context(), batch{verb: audit.Delete, deletes: []objects.Key{t.key()}})
		if err != nil {
			s.refuseWrite(w, r, "not deleted", t.key().String(), err)
			return
		}
		reply(w, response.Results[0])
	default:
		w.Header().Set("Allow", "GET, PUT, POST, DELETE")
		refuse(w, &client.Problem{Status: http.StatusMethodNotAllowed, What: r.Method + " is not possible here", Where: r.URL.Path})
	}
}

// wantsWire says whether the client is one of Heddle's own parts.
func wantsWire(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), client.WireType)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, t target) {
	object, err := s.config.Store.Get(r.Context(), t.key())
	if err != nil {
		refuseError(w, fmt.Sprintf("%s %q not found", t.kind.Plural, t.name), t.namespace, err)
		return
	}
	object = s.counted([]*objects.Object{shown(access.From(r.Context()), object)})[0]
	if wantsWire(r) {
		reply(w, object)
		return
	}
	document, err := object.Document()
	if err != nil {
		refuseError(w, "object not shown", t.key().String(), err)
		return
	}
	reply(w, document)
}

// counted gives objects of one kind with how many proxies run them. No status holds that: one proxy that comes or goes would be a write
// of every object that it uses.
func (s *Server) counted(all []*objects.Object) []*objects.Object {
	if len(all) == 0 || !all[0].Kind.Programmed() {
		return all
	}
	keys := make([]objects.Key, 0, len(all))
	for _, o := range all {
		keys = append(keys, o.Key())
	}
	running := s.config.Controller.Running(keys)
	out := make([]*objects.Object, 0, len(all))
	for i, o := range all {
		// The store's own stays as it is.
		one := *o
		one.Status.Proxies = running[keys[i]]
		out = append(out, &one)
	}
	return out
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, t target) {
	items, position, err := s.config.Store.List(r.Context(), t.kind, t.namespace)
	if err != nil {
		refuseError(w, "objects not listed", t.kind.Plural, err)
		return
	}
	list := client.List{Items: make([]*objects.Object, 0, len(items)), Position: string(position)}
	for _, o := range items {
		list.Items = append(list.Items, shown(access.From(r.Context()), o))
	}
	list.Items = s.counted(list.Items)
	documents := []map[string]any{}
	for _, o := range list.Items {
		if !wantsWire(r) {
			document, err := o.Document()
			if err != nil {
				refuseError(w, "object not shown", o.Key().String(), err)
				return
			}
			documents = append(documents, document)
		}
	}
	if wantsWire(r) {
		reply(w, list)
		return
	}
	reply(w, map[string]any{"apiVersion": t.kind.APIVersion(), "kind": t.kind.Kind + "List",
		"metadata": map[string]any{"resourceVersion": string(position)}, "items": documents})
}

// watch streams one JSON value per line and change. Changes of statuses are not sent: what follows objects would
// otherwise follow its own reports.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, t target) {
	after := store.Position(r.URL.Query().Get("resourceVersion"))
	if after == "" {
		refuse(w, &client.Problem{Status: http.StatusBadRequest, What: "a watch needs resourceVersion", Remedy: "list first, and watch from the list's resourceVersion"})
		return
	}
	if !take(s.watches, w, r, "watches") {
		return
	}
	defer giveBack(s.watches, r)
	events, ended := s.config.Store.Watch(r.Context(), t.kind, after)
	flusher, ok := w.(http.Flusher)
	if !ok {
		refuse(w, &client.Problem{Status: http.StatusInternalServerError, What: "this connection cannot stream"})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	flusher.Flush()
	encoder := json.NewEncoder(w)
	for event := range events {
		if event.StatusOnly || t.namespace != "" && event.Key.Namespace != t.namespace {
			continue
		}
		if err := encoder.Encode(change(event, access.From(r.Context()), wantsWire(r))); err != nil {
			return
		}
		if len(events) == 0 {
			flusher.Flush()
		}
	}
	if err := ended(); err != nil {
		problem := &client.Problem{Status: http.StatusInternalServerError, What: "watch ended", Why: err.Error()}
		if errors.Is(err, store.ErrExpired) {
			problem.Status = http.StatusGone
		}
		// The client hears of it, or has gone.
		_ = encoder.Encode(client.Change{Type: "ERROR", Problem: problem})
	}
}

// take gives a request one of the places for what lasts, which [giveBack] gives back, or answers that there are too many. The agent has
// as many as it needs: others must not keep it from hearing what is to run.
func take(places chan struct{}, w http.ResponseWriter, r *http.Request, what string) bool {
	if access.From(r.Context()).Agent() {
		return true
	}
	select {
	case places <- struct{}{}:
		return true
	default:
		refuse(w, &client.Problem{Status: http.StatusTooManyRequests, What: "too many " + what, Remedy: fmt.Sprintf("close some: %d are the limit", cap(places))})
		return false
	}
}

func giveBack(places chan struct{}, r *http.Request) {
	if !access.From(r.Context()).Agent() {
		<-places
	}
}

func change(event store.Event, caller *access.Caller, wire bool) any {
	kind := "MODIFIED"
	switch {
	case event.Object == nil:
		kind = "DELETED"
	case event.Object.GetGeneration() <= 1:
		kind = "ADDED"
	}
	if wire {
		c := client.Change{Type: kind, Key: event.Key, Position: string(event.Position)}
		if event.Object != nil {
			c.Object = shown(caller, event.Object)
		}
		return c
	}
	var document any
	if event.Object != nil {
		if d, err := shown(caller, event.Object).Document(); err == nil {
			document = d
		}
	} else {
		document = map[string]any{"kind": event.Key.Kind, "metadata": map[string]any{"name": event.Key.Name, "namespace": event.Key.Namespace}}
	}
	return map[string]any{"type": kind, "object": document}
}

// put writes one object, given in wire or in Kubernetes' form.
func (s *Server) put(w http.ResponseWriter, r *http.Request, t target) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		refuseError(w, "not written", t.key().String(), err)
		return
	}
	var object *objects.Object
	if strings.Contains(r.Header.Get("Content-Type"), client.WireType) {
		object = &objects.Object{}
		if err := json.Unmarshal(body, object); err != nil {
			refuse(w, &client.Problem{Status: http.StatusBadRequest, What: "the object cannot be read", Where: t.key().String(), Why: err.Error()})
			return
		}
		objects.Default(object)
		if errs := objects.CheckForm(object); len(errs) > 0 {
			refuse(w, invalid(asErrors(errs)))
			return
		}
	} else {
		decoded, errs := objects.Decode(bytes.NewReader(body), "request", t.namespace)
		if len(errs) > 0 {
			refuse(w, invalid(errs))
			return
		}
		if len(decoded) != 1 {
			refuse(w, &client.Problem{Status: http.StatusBadRequest, What: fmt.Sprintf("the body holds %d objects instead of one", len(decoded))})
			return
		}
		object = decoded[0]
		object.Origin.File, object.Origin.Line = "", 0
	}
	want := t.key()
	if t.name == "" {
		want.Name = object.GetName()
	}
	if want.Namespace == "" && t.kind.Namespaced {
		want.Namespace = object.GetNamespace()
	}
	if object.Key() != want {
		refuse(w, &client.Problem{Status: http.StatusBadRequest, What: fmt.Sprintf("the path names %s, the body %s", want, object.Key())})
		return
	}
	b := batch{verb: audit.Put, objects: []*objects.Object{object}, replace: true, versions: map[objects.Key]objects.Version{object.Key(): object.Version}}
	if r.Method == http.MethodPost {
		b.versions[object.Key()] = store.Absent
	}
	response, err := s.write(r.Context(), b)
	if err != nil {
		s.refuseWrite(w, r, "not written", want.String(), err)
		return
	}
	reply(w, response.Results[0])
}

func asErrors(errs []*objects.Error) []error {
	out := make([]error, 0, len(errs))
	for _, e := range errs {
		out = append(out, e)
	}
	return out
}
