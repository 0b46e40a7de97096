package objects

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Bounds on what Decode reads, so that a hostile manifest cannot take the memory.
const (
	// MaxManifest is the largest input in bytes.
	MaxManifest = 16 << 20
	// maxValues bounds the values of one document after YAML aliases are expanded.
	maxValues = 500_000
	// maxDepth bounds nesting.
	maxDepth = 100
	// maxDocuments bounds the documents of one input that hold anything.
	maxDocuments = 10_000
	// maxErrors ends decoding when a file is wrong from end to end.
	maxErrors = 200
	// maxRepeatedRemedy is the longest remedy, in bytes, that is written out for each error that has it.
	maxRepeatedRemedy = 200
)

// DefaultNamespace is the namespace of objects that name none, unless the command line says otherwise.
const DefaultNamespace = "default"

// Decode reads every document of a YAML or JSON manifest, `List` kinds included, checks each for form and fills in
// defaults. file is used in messages and origins; namespace (empty: "default") is given to namespaced objects that
// name none. All errors are collected, each an [*Error] with file, line, field path and remedy; objects that have an
// error are not returned, so a caller that applies a file must refuse it whole when there is any error.
func Decode(r io.Reader, file, namespace string) ([]*Object, []error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxManifest+1))
	if err != nil {
		return nil, []error{fmt.Errorf("reading %s: %w", file, err)}
	}
	if len(data) > MaxManifest {
		return nil, []error{&Error{File: file, Line: 1,
			Problem: fmt.Sprintf("larger than %d MiB", MaxManifest>>20), Remedy: "split it into several files"}}
	}
	if namespace == "" {
		namespace = DefaultNamespace
	}
	d := &decoder{file: file, namespace: namespace, seen: map[owned]int{}}
	documents := 0
	for _, doc := range splitDocuments(string(data)) {
		if doc.isEmpty() {
			continue
		}
		if documents++; documents > maxDocuments {
			d.errs = append(d.errs, &Error{File: file, Line: doc.line,
				Problem: fmt.Sprintf("more than %d documents", maxDocuments), Remedy: "apply them in parts"})
			break
		}
		d.document(doc)
		if len(d.errs) >= maxErrors {
			d.errs = append(d.errs[:maxErrors], &Error{File: file, Line: doc.line,
				Problem: "too many errors", Remedy: "the rest of the file was not read"})
			break
		}
	}
	said := map[string]bool{}
	for _, err := range d.errs {
		var e *Error
		if !errors.As(err, &e) {
			continue
		}
		e.clip()
		if len(e.Remedy) > maxRepeatedRemedy && said[e.Remedy] {
			e.Remedy = "as above"
		}
		said[e.Remedy] = true
	}
	return d.out, d.errs
}

// document is the text of one YAML document and the line of the file that it starts at.
type document struct {
	text string
	line int
}

// isEmpty says that the document is nothing but its marker, which is worth no parser.
func (d document) isEmpty() bool {
	return strings.TrimSpace(strings.TrimPrefix(d.text, "---")) == ""
}

// splitDocuments cuts a stream at its document markers, so that a syntax error in one document does not hide what is
// wrong in the next. YAML allows "---" at the start of a line nowhere else (YAML 1.2, section 9.1.2).
func splitDocuments(stream string) []document {
	var out []document
	start, startLine, line, offset := 0, 1, 1, 0
	for rest := stream; rest != ""; {
		text, after, _ := strings.Cut(rest, "\n")
		trimmed := strings.TrimRight(text, "\r")
		if offset > start && (trimmed == "---" || strings.HasPrefix(trimmed, "--- ")) {
			out = append(out, document{stream[start:offset], startLine})
			start, startLine = offset, line
		}
		offset += len(rest) - len(after)
		rest = after
		line++
	}
	return append(out, document{stream[start:], startLine})
}

// owned is an object's key with the cluster that it names as its own.
type owned struct {
	key   Key
	owner string
}

type decoder struct {
	file      string
	namespace string
	out       []*Object
	errs      []error
	seen      map[owned]int

	// Of the document or list item at hand:
	key    Key
	offset int
	secret bool
	values int
	lines  map[string]int
}

func (d *decoder) fail(line int, path, problem, remedy string) {
	d.errs = append(d.errs, &Error{
		File: d.file, Line: line, Object: d.key, Path: path, Problem: problem, Remedy: remedy,
	})
}

var yamlLine = regexp.MustCompile(`^yaml: (?:unmarshal errors:\s*)?line (\d+): (.*)$`)

func (d *decoder) document(doc document) {
	d.key, d.offset, d.values = Key{}, doc.line-1, 0
	var root yaml.Node
	dec := yaml.NewDecoder(strings.NewReader(doc.text))
	if err := dec.Decode(&root); err != nil {
		if errors.Is(err, io.EOF) {
			return
		}
		line, problem := doc.line, strings.TrimPrefix(err.Error(), "yaml: ")
		if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
			if n, convErr := strconv.Atoi(m[1]); convErr == nil {
				line, problem = d.offset+n, m[2]
			}
		}
		d.fail(line, "", "not valid YAML: "+problem, "check indentation, quotes and brackets near this line")
		return
	}
	var more yaml.Node
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		d.fail(doc.line, "", "more follows after the end of the document", `put "---" on a line between documents`)
		return
	}
	if len(root.Content) == 0 {
		return
	}
	if top := resolve(root.Content[0]); top.Kind == yaml.ScalarNode && top.Tag == "!!null" {
		return
	}
	d.item(root.Content[0], 0)
}

// item decodes one object, or the items of a list kind.
func (d *decoder) item(n *yaml.Node, depth int) {
	n = resolve(n)
	d.key, d.secret, d.lines = Key{}, false, map[string]int{}
	line := d.line(n)
	if n.Kind != yaml.MappingNode {
		d.fail(line, "", "a manifest must be an object with apiVersion, kind and metadata",
			"see `heddle get services -o yaml` for an example")
		return
	}
	apiVersion, avNode := d.headField(n, "apiVersion")
	kindName, kindNode := d.headField(n, "kind")
	if apiVersion == "" || kindName == "" {
		for _, f := range []struct{ name, value, example string }{
			{"apiVersion", apiVersion, "v1"}, {"kind", kindName, "Service"},
		} {
			if f.value == "" {
				d.fail(line, f.name, "missing", fmt.Sprintf("add it, for example %s: %s", f.name, f.example))
			}
		}
		return
	}
	if strings.HasSuffix(kindName, "List") && (kindName == "List" || KindOf(groupOf(apiVersion), kindName) == nil) {
		if items := child(n, "items"); items != nil {
			items = resolve(items)
			if items.Kind != yaml.SequenceNode || depth > 4 {
				d.fail(d.line(items), "items", "must be a list of objects", "write it as a list")
				return
			}
			for _, it := range items.Content {
				d.item(it, depth+1)
			}
			return
		}
		if kindName == "List" {
			d.fail(line, "items", "missing", "add the list's objects under items")
			return
		}
	}
	kind, problem, remedy := findVersion(apiVersion, kindName)
	if kind == nil {
		at, path := kindNode, "kind"
		if strings.Contains(remedy, "apiVersion") || strings.Contains(problem, "version") && avNode != nil &&
			!strings.HasPrefix(problem, "unknown kind") {
			at, path = avNode, "apiVersion"
		}
		d.fail(d.line(at), path, problem, remedy)
		return
	}
	d.object(n, kind)
}

func groupOf(apiVersion string) string {
	group, _, ok := strings.Cut(apiVersion, "/")
	if !ok {
		return ""
	}
	return group
}

// object decodes one object of a known kind.
func (d *decoder) object(n *yaml.Node, kind *Kind) {
	before := len(d.errs)
	d.secret = kind == Secret
	d.key = Key{Group: kind.Group, Kind: kind.Kind}
	if meta := child(n, "metadata"); meta != nil {
		meta = resolve(meta)
		d.key.Name = scalarChild(meta, "name")
		if kind.Namespaced {
			d.key.Namespace = scalarChild(meta, "namespace")
		}
	}
	if kind.Namespaced && d.key.Namespace == "" {
		d.key.Namespace = d.namespace
	}
	value, ok := d.convert(n, shapeOf(kind), "", 0).(map[string]any)
	if !ok || len(d.errs) > before {
		return
	}
	delete(value, "status")
	text, err := json.Marshal(value)
	if err != nil {
		d.fail(d.line(n), "", "cannot be written as JSON: "+err.Error(), "remove what JSON does not have")
		return
	}
	res := kind.New()
	if err := json.Unmarshal(text, res); err != nil {
		problem := err.Error()
		if d.secret {
			problem = "has a value of the wrong form"
		}
		d.fail(d.line(n), "", problem, "check the fields' forms")
		return
	}
	o := &Object{Resource: res, Kind: kind, Origin: Origin{File: d.file, Line: d.line(n)}, lines: d.lines}
	setTypeMeta(o)
	switch {
	case kind.Namespaced && o.GetNamespace() == "":
		o.SetNamespace(d.namespace)
	case !kind.Namespaced && o.GetNamespace() != "":
		d.fail(d.line(n), "metadata.namespace", kind.Kind+" is not in a namespace", "remove the field")
	}
	if o.GetName() == "" && o.GetGenerateName() != "" {
		d.fail(d.lineOf("metadata.generateName", n), "metadata.generateName", "generated names are not supported",
			"give metadata.name")
		return
	}
	Default(o)
	for _, e := range CheckForm(o) {
		e.File, e.Line = d.file, d.lineOf(e.Path, n)
		d.errs = append(d.errs, e)
	}
	// Clusters may each have an object of a name: one file may hold both. An owner that contradicts itself is told later.
	owner, _ := o.Owner()
	id := owned{o.Key(), owner}
	if first, dup := d.seen[id]; dup {
		d.fail(d.line(n), "", fmt.Sprintf("is in the file twice, first on line %d", first), "remove one of the two")
	} else {
		d.seen[id] = d.line(n)
	}
	if len(d.errs) == before {
		d.out = append(d.out, o)
	}
}

func setTypeMeta(o *Object) {
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{
		Group: o.Kind.Group, Version: o.Kind.Version, Kind: o.Kind.Kind,
	})
}

func (d *decoder) line(n *yaml.Node) int {
	if n == nil {
		return d.offset + 1
	}
	return d.offset + n.Line
}

// lineOf gives the line of the nearest enclosing field that the document has.
func (d *decoder) lineOf(path string, n *yaml.Node) int {
	if line := nearestLine(d.lines, path); line != 0 {
		return line
	}
	return d.line(n)
}

func nearestLine(lines map[string]int, path string) int {
	for path != "" {
		if line, ok := lines[path]; ok {
			return line
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return 0
		}
		path = path[:cut]
	}
	return 0
}

// headField reads apiVersion or kind, before the kind's shape is known.
func (d *decoder) headField(n *yaml.Node, name string) (string, *yaml.Node) {
	v := child(n, name)
	if v == nil {
		return "", nil
	}
	v = resolve(v)
	if v.Kind != yaml.ScalarNode {
		return "", v
	}
	return v.Value, v
}

func resolve(n *yaml.Node) *yaml.Node {
	for i := 0; n.Kind == yaml.AliasNode && n.Alias != nil && i < maxDepth; i++ {
		n = n.Alias
	}
	return n
}

func child(n *yaml.Node, name string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

func scalarChild(n *yaml.Node, name string) string {
	if c := child(n, name); c != nil {
		if c = resolve(c); c.Kind == yaml.ScalarNode {
			return c.Value
		}
	}
	return ""
}

// joinField appends a field name to a path.
func joinField(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// joinKey appends a map key to a path, quoted when it has a dot itself.
func joinKey(path, key string) string {
	if strings.ContainsAny(key, ".[]/ ") || key == "" {
		return fmt.Sprintf("%s[%q]", path, key)
	}
	return joinField(path, key)
}
