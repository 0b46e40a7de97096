package objects

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// String names the object; its content, which may be secret, is never part of it.
func (o *Object) String() string { return o.Key().String() }

// GoString is String, so that %#v does not print secrets either.
func (o *Object) GoString() string { return o.Key().String() }

// Document gives the object as Kubernetes shows it: apiVersion, kind, metadata with resourceVersion, spec or data,
// and the status. Secret values are in it, in base64.
func (o *Object) Document() (map[string]any, error) {
	text, err := json.Marshal(o.Resource)
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", o.Key(), err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var doc map[string]any
	if err := dec.Decode(&doc); err != nil {
		return nil, fmt.Errorf("writing %s: %w", o.Key(), err)
	}
	doc["apiVersion"], doc["kind"] = o.Kind.APIVersion(), o.Kind.Kind
	meta, ok := doc["metadata"].(map[string]any)
	if !ok {
		meta = map[string]any{}
		doc["metadata"] = meta
	}
	if meta["creationTimestamp"] == nil {
		delete(meta, "creationTimestamp")
	}
	if o.Version != "" {
		meta["resourceVersion"] = string(o.Version)
	}
	delete(doc, "status")
	if status, err := statusDocument(o.Status); err != nil {
		return nil, fmt.Errorf("writing %s: %w", o.Key(), err)
	} else if len(status) > 0 {
		doc["status"] = status
	}
	if o.Kind == Namespace {
		if spec, ok := doc["spec"].(map[string]any); ok && len(spec) == 0 {
			delete(doc, "spec")
		}
	}
	return doc, nil
}

func statusDocument(s Status) (map[string]any, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	return doc, json.Unmarshal(text, &doc)
}

// Encode writes objects for `get -o`: format is "yaml" or "json". Several objects are written as one List, as
// kubectl does.
func Encode(w io.Writer, format string, list bool, objs ...*Object) error {
	var doc any
	docs := make([]any, 0, len(objs))
	for _, o := range objs {
		d, err := o.Document()
		if err != nil {
			return err
		}
		docs = append(docs, d)
	}
	if len(docs) == 1 && !list {
		doc = docs[0]
	} else {
		doc = map[string]any{"apiVersion": "v1", "kind": "List", "items": docs}
	}
	return EncodeDocument(w, format, doc)
}

// EncodeDocument writes any JSON-like document as "yaml" or "json".
func EncodeDocument(w io.Writer, format string, doc any) error {
	var text []byte
	var err error
	switch format {
	case "yaml":
		text, err = yaml.Marshal(doc)
	case "json":
		text, err = json.MarshalIndent(doc, "", "  ")
		text = append(text, '\n')
	default:
		return fmt.Errorf("unknown format %q: use yaml or json", format)
	}
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// Redacted is the object as it may be shown: a Secret's values are replaced by their lengths.
func (o *Object) Redacted() *Object {
	secret, ok := o.Resource.(*corev1.Secret)
	if !ok {
		return o
	}
	out := *o
	copied := secret.DeepCopy()
	copied.StringData = map[string]string{}
	for name, value := range secret.Data {
		copied.StringData[name] = fmt.Sprintf("<%d bytes>", len(value))
	}
	for name, value := range secret.StringData {
		copied.StringData[name] = fmt.Sprintf("<%d bytes>", len(value))
	}
	copied.Data = nil
	// kubectl's record of what was applied holds the values once more.
	delete(copied.Annotations, corev1.LastAppliedConfigAnnotation)
	out.Resource = copied
	return &out
}

// wire is how an object travels between Heddle's own parts and is kept in the store.
type wire struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Resource   json.RawMessage `json:"resource"`
	Origin     Origin          `json:"origin"`
	Status     *Status         `json:"status,omitempty"`
	Version    Version         `json:"version,omitempty"`
	Lines      map[string]int  `json:"lines,omitempty"`
}

// MarshalJSON writes everything that is known of the object; UnmarshalJSON reads it back. The REST API and the store
// use this form; users see [Encode]'s.
func (o *Object) MarshalJSON() ([]byte, error) {
	res, err := json.Marshal(o.Resource)
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", o.Key(), err)
	}
	w := wire{
		APIVersion: o.Kind.APIVersion(), Kind: o.Kind.Kind, Resource: res, Origin: o.Origin, Version: o.Version,
		Lines: o.lines,
	}
	if o.Status.Conditions != nil || o.Status.Fields != nil || o.Status.Workload != nil || o.Status.Proxies != 0 {
		w.Status = &o.Status
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (o *Object) UnmarshalJSON(text []byte) error {
	var w wire
	if err := json.Unmarshal(text, &w); err != nil {
		return err
	}
	kind, problem, remedy := findVersion(w.APIVersion, w.Kind)
	if kind == nil {
		return errors.New(problem + "; " + remedy)
	}
	res := kind.New()
	if err := json.Unmarshal(w.Resource, res); err != nil {
		return fmt.Errorf("reading a %s: %w", kind.Kind, err)
	}
	*o = Object{Resource: res, Kind: kind, Origin: w.Origin, Version: w.Version, lines: w.Lines}
	if w.Status != nil {
		o.Status = *w.Status
	}
	setTypeMeta(o)
	return nil
}

// WithoutLines drops what is only of use to who wrote the file, before the object is stored.
func (o *Object) WithoutLines() *Object {
	out := *o
	out.lines = nil
	return &out
}
