package objects

import (
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
)

// convert turns a YAML node into JSON values of the shape and notes the line of each field. It fails every value of
// another form and returns nil for it.
func (d *decoder) convert(n *yaml.Node, s *shape, path string, depth int) any {
	n = resolve(n)
	if path != "" {
		d.lines[path] = d.line(n)
	}
	d.values++
	if d.values > maxValues || depth > maxDepth {
		if d.values <= maxValues+1 || depth == maxDepth+1 {
			d.fail(d.line(n), path, "too many values or too deep nesting", "make the document smaller")
		}
		d.values = maxValues + 2
		return nil
	}
	// A field set to null is a field left out, as Kubernetes has it.
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil
	}
	switch s.form {
	case formAny:
		return d.free(n, path, depth)
	case formObject, formMap:
		if n.Kind != yaml.MappingNode {
			return d.mismatch(n, s, path)
		}
		return d.mapping(n, s, path, depth)
	case formList:
		if n.Kind != yaml.SequenceNode {
			return d.mismatch(n, s, path)
		}
		out := make([]any, 0, len(n.Content))
		for i, item := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			v := d.convert(item, s.elem, at, depth+1)
			if v == nil && resolve(item).ShortTag() == "!!null" {
				d.fail(d.line(item), at, "is empty", "remove the empty item or fill it in")
			}
			out = append(out, v)
		}
		return out
	}
	if n.Kind != yaml.ScalarNode {
		return d.mismatch(n, s, path)
	}
	return d.scalar(n, s, path)
}

func (d *decoder) mapping(n *yaml.Node, s *shape, path string, depth int) any {
	out := make(map[string]any, len(n.Content)/2)
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		keyNode, valueNode := resolve(n.Content[i]), n.Content[i+1]
		if keyNode.ShortTag() == "!!merge" {
			merged = append(merged, resolve(valueNode))
			continue
		}
		if keyNode.Kind != yaml.ScalarNode {
			d.fail(d.line(keyNode), path, "has a key that is not plain text", "quote the key")
			continue
		}
		name := keyNode.Value
		at := joinField(path, name)
		if s.form == formMap {
			at = joinKey(path, name)
		}
		if _, dup := out[name]; dup {
			d.fail(d.line(keyNode), at, "is set twice", "remove one of the two")
			continue
		}
		inner := s.elem
		if s.form == formObject {
			var known bool
			if inner, known = s.fields[name]; !known {
				remedy := "fields here are " + strings.Join(s.fieldNames(), ", ")
				if near := Nearest(name, s.fieldNames()); near != "" {
					remedy = fmt.Sprintf("did you mean %q?", near)
				}
				d.fail(d.line(keyNode), at, "unknown field", remedy)
				continue
			}
		}
		v := d.convert(valueNode, inner, at, depth+1)
		d.lines[at] = d.line(keyNode)
		if v != nil {
			out[name] = v
		} else if s.form == formMap && resolve(valueNode).ShortTag() == "!!null" && inner.form == formString {
			out[name] = ""
		}
	}
	// Merge keys (<<): what is written beside them wins.
	for _, m := range merged {
		sources := []*yaml.Node{m}
		if m.Kind == yaml.SequenceNode {
			sources = m.Content
		}
		for _, src := range sources {
			src = resolve(src)
			if src.Kind != yaml.MappingNode {
				d.fail(d.line(src), path, "<< must name an object", "use an anchor of an object")
				continue
			}
			if from, ok := d.convert(src, s, path, depth+1).(map[string]any); ok {
				for k, v := range from {
					if _, set := out[k]; !set {
						out[k] = v
					}
				}
			}
		}
	}
	return out
}

// free converts a value of any form.
func (d *decoder) free(n *yaml.Node, path string, depth int) any {
	switch n.Kind {
	case yaml.MappingNode:
		return d.mapping(n, &shape{form: formMap, elem: &shape{form: formAny}}, path, depth)
	case yaml.SequenceNode:
		return d.convert(n, &shape{form: formList, elem: &shape{form: formAny}}, path, depth)
	}
	var v any
	if n.ShortTag() == "!!timestamp" || n.ShortTag() == "!!str" {
		return n.Value
	}
	if err := n.Decode(&v); err != nil {
		return n.Value
	}
	if f, ok := v.(float64); ok && (math.IsInf(f, 0) || math.IsNaN(f)) {
		return n.Value
	}
	return v
}

func (d *decoder) mismatch(n *yaml.Node, s *shape, path string) any {
	remedy := "write " + s.form.describe()
	switch {
	case s.form == formString && n.Kind == yaml.ScalarNode && !d.secret:
		remedy = fmt.Sprintf("put it in quotes: %q", n.Value)
	case s.form == formList && n.Kind == yaml.ScalarNode && !d.secret:
		remedy = fmt.Sprintf("write it as a list: [%s]", n.Value)
	case s.form == formList && n.Kind == yaml.MappingNode:
		remedy = `write it as a list: put "- " before the item`
	case s.form == formEnum:
		remedy = "write one of " + strings.Join(s.words, ", ")
	case s.form == formInt && n.ShortTag() == "!!str":
		if _, err := strconv.ParseInt(n.Value, 10, 64); err == nil {
			remedy = "remove the quotes"
		}
	}
	d.fail(d.line(n), path, fmt.Sprintf("must be %s, but is %s", s.form.describe(), d.found(n)), remedy)
	return nil
}

// found describes a value in messages; values of secrets are never shown.
func (d *decoder) found(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "an object"
	case yaml.SequenceNode:
		return "a list"
	}
	what := map[string]string{
		"!!str": "the string", "!!int": "the number", "!!float": "the number", "!!bool": "the word",
		"!!timestamp": "the time",
	}[n.ShortTag()]
	if what == "" {
		what = "a value of type"
		return what + " " + n.ShortTag()
	}
	if d.secret {
		return what + " (not shown)"
	}
	value := n.Value
	if len(value) > 60 {
		value = value[:60] + "…"
	}
	if n.ShortTag() == "!!str" {
		return what + " " + strconv.Quote(value)
	}
	return what + " " + value
}

func (d *decoder) scalar(n *yaml.Node, s *shape, path string) any {
	tag := n.ShortTag()
	bad := func(problem, remedy string) any {
		if d.secret {
			problem = "has a value of the wrong form"
		}
		d.fail(d.line(n), path, problem, remedy)
		return nil
	}
	switch s.form {
	case formString:
		if tag != "!!str" && tag != "!!timestamp" {
			return d.mismatch(n, s, path)
		}
		return n.Value
	case formBool:
		var v bool
		if tag != "!!bool" || n.Decode(&v) != nil {
			return d.mismatch(n, s, path)
		}
		return v
	case formInt:
		var v int64
		if tag != "!!int" || n.Decode(&v) != nil {
			return d.mismatch(n, s, path)
		}
		if v < s.min || v > s.max {
			return bad(fmt.Sprintf("%d is out of range", v), fmt.Sprintf("use %d to %d", s.min, s.max))
		}
		return v
	case formFloat:
		var v float64
		if tag != "!!float" && tag != "!!int" || n.Decode(&v) != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return d.mismatch(n, s, path)
		}
		return v
	case formBytes:
		if tag != "!!str" && tag != "!!binary" {
			return d.mismatch(n, s, path)
		}
		text := strings.Join(strings.Fields(n.Value), "")
		if _, err := base64.StdEncoding.DecodeString(text); err != nil {
			return bad("is not base64", "encode the bytes with `base64 -w0`, or use stringData in a Secret")
		}
		return text
	case formEnum:
		if tag != "!!str" {
			return d.mismatch(n, s, path)
		}
		if !slices.Contains(s.words, n.Value) {
			remedy := "use one of " + strings.Join(s.words, ", ")
			if near := Nearest(n.Value, s.words); near != "" {
				remedy = fmt.Sprintf("did you mean %s?", near)
			}
			return bad(fmt.Sprintf("%q is not a value of this field", n.Value), remedy)
		}
		return n.Value
	case formDuration:
		if tag != "!!str" {
			return d.mismatch(n, s, path)
		}
		v, err := time.ParseDuration(n.Value)
		if err != nil {
			return bad(fmt.Sprintf("%q is not a duration", n.Value), `write a number and a unit, for example "10s"`)
		}
		return strconv.FormatFloat(v.Seconds(), 'f', -1, 64) + "s"
	case formTime:
		if tag != "!!str" && tag != "!!timestamp" {
			return d.mismatch(n, s, path)
		}
		if _, err := time.Parse(time.RFC3339, n.Value); err != nil {
			return bad(fmt.Sprintf("%q is not a time", n.Value), "write it as 2006-01-02T15:04:05Z")
		}
		return n.Value
	case formIntOrString:
		if tag == "!!int" {
			var v int32
			if n.Decode(&v) != nil {
				return d.mismatch(n, s, path)
			}
			return v
		}
		if tag != "!!str" {
			return d.mismatch(n, s, path)
		}
		return n.Value
	case formQuantity:
		if _, err := resource.ParseQuantity(n.Value); err != nil {
			return bad(fmt.Sprintf("%q is not a quantity", n.Value), `write for example "500m" or "64Mi"`)
		}
		return n.Value
	}
	return d.mismatch(n, s, path)
}
