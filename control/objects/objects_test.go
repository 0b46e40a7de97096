package objects

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// TestEveryFieldHasATreatment walks every field of every accepted type and demands that exactly one list of its
// table names it, and that the tables name nothing else.
func TestEveryFieldHasATreatment(t *testing.T) {
	all := map[string][]string{}
	var walkMessage func(d protoreflect.MessageDescriptor)
	walkMessage = func(d protoreflect.MessageDescriptor) {
		name := string(d.FullName())
		if _, seen := all[name]; seen || d.ParentFile().Package() == "google.protobuf" {
			return
		}
		all[name] = []string{}
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i)
			all[name] = append(all[name], f.JSONName())
			if f.IsMap() {
				f = f.MapValue()
			}
			if f.Message() != nil {
				walkMessage(f.Message())
			}
		}
	}
	structs := goStructs{t, all, map[string]string{}}
	for _, k := range Kinds {
		typ := reflect.TypeOf(k.New()).Elem()
		for _, l := range lookedFields(typ) {
			in := typ.FieldByIndex(l.index).Type
			if m, isProto := reflect.New(in).Interface().(proto.Message); isProto {
				walkMessage(m.ProtoReflect().Descriptor())
			} else if l.path != "" {
				structs.walk(in)
			} else {
				all[typeName(typ)] = append(all[typeName(typ)], l.name)
			}
		}
	}

	for name, fieldNames := range all {
		table, ok := treatments[name]
		if !ok {
			t.Errorf("no table for %s", name)
			continue
		}
		count := map[string]int{}
		for _, f := range table.translated {
			count[f]++
		}
		for f := range table.ignored {
			count[f]++
		}
		for f := range table.refused {
			count[f]++
		}
		for _, f := range fieldNames {
			if count[f] != 1 {
				t.Errorf("%s.%s is in %d lists, want 1", name, f, count[f])
			}
			delete(count, f)
		}
		for f := range count {
			t.Errorf("%s has no field %s", name, f)
		}
	}
	for name := range treatments {
		if _, used := all[name]; !used {
			t.Errorf("there is a table for %s, which no kind has", name)
		}
	}
}

// goStructs lists the fields of types in Go, and of the types within.
type goStructs struct {
	t   *testing.T
	all map[string][]string
	// from is the package of each.
	from map[string]string
}

// fieldPackages have the types whose fields users write one by one; types of other packages are values by themselves.
var fieldPackages = []string{"heddle.io/heddle/api/v1alpha1", "k8s.io/api/core/v1", "sigs.k8s.io/gateway-api/apis/v1"}

// walk lists a type and those within, which are looked into unless they are refused.
func (g goStructs) walk(typ reflect.Type) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	if typ.Kind() == reflect.Map && typ.Elem().Kind() != reflect.String {
		g.t.Errorf("treatments do not look into %s", typ)
	}
	if typ.Kind() != reflect.Struct || !slices.Contains(fieldPackages, typ.PkgPath()) {
		return
	}
	name := typeName(typ)
	if from, seen := g.from[name]; seen {
		if from != typ.PkgPath() {
			g.t.Errorf("%s is of %s and of %s: they have one table", name, from, typ.PkgPath())
		}
		return
	}
	g.from[name], g.all[name] = typ.PkgPath(), []string{}
	for f := range typ.Fields() {
		field, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if field != "" {
			g.all[name] = append(g.all[name], field)
		}
		if _, refused := treatments[name].refused[field]; !refused {
			g.walk(f.Type)
		}
	}
}

func decodeAll(t *testing.T, text string) []*Object {
	t.Helper()
	objs, errs := Decode(strings.NewReader(text), "in.yaml", "")
	for _, err := range errs {
		t.Error(err)
	}
	if t.Failed() {
		t.FailNow()
	}
	return objs
}

func TestDecodeErrors(t *testing.T) {
	cases := []struct{ name, text, want string }{
		{"unknown kind", "apiVersion: v1\nkind: Servce\nmetadata: {name: a}\n",
			`in.yaml:2: kind: unknown kind "Servce" in apiVersion "v1"; did you mean Service (v1)?`},
		{"unknown version", "apiVersion: networking.istio.io/v2\nkind: Gateway\nmetadata: {name: a}\n",
			`in.yaml:1: apiVersion: Gateway has no version "networking.istio.io/v2"; use one of networking.istio.io/v1, networking.istio.io/v1beta1, networking.istio.io/v1alpha3`},
		{"group missing", "apiVersion: v1\nkind: Gateway\nmetadata: {name: a}\n",
			`in.yaml:1: apiVersion: there is no kind Gateway in "v1"; use apiVersion networking.istio.io/v1 or networking.istio.io/v1beta1 or networking.istio.io/v1alpha3`},
		{"no kind", "metadata: {name: a}\n",
			"in.yaml:1: apiVersion: missing; add it, for example apiVersion: v1\nin.yaml:1: kind: missing; add it, for example kind: Service"},
		{"no name", "apiVersion: v1\nkind: Namespace\nmetadata: {}\n",
			"in.yaml:3: Namespace/: metadata.name: missing; give the object a name"},
		{"bad name", "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: Shop\n",
			`in.yaml:4: Namespace/Shop: metadata.name: "Shop" is not a DNS label; use at most 63 lower-case letters, digits and '-', and begin and end with a letter or digit`},
		{"unknown field", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  selektor: {app: a}\n  ports: [{port: 80}]\n",
			`in.yaml:5: Service/default/a: spec.selektor: unknown field; did you mean "selector"?`},
		{"wrong type", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  selector: {app: a}\n  ports:\n  - port: \"80\"\n",
			`in.yaml:7: Service/default/a: spec.ports[0].port: must be a whole number, but is the string "80"; remove the quotes`},
		{"string for number", "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a}\nspec:\n  rules:\n  - to:\n    - operation: {ports: [8080]}\n",
			`in.yaml:7: AuthorizationPolicy/default/a: spec.rules[0].to[0].operation.ports[0]: must be a string, but is the number 8080; put it in quotes: "8080"`},
		{"enum", "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: a}\nspec:\n  mtls: {mode: STRIKT}\n",
			`in.yaml:5: PeerAuthentication/default/a: spec.mtls.mode: "STRIKT" is not a value of this field; did you mean STRICT?`},
		{"twice", "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n",
			"in.yaml:5: Namespace/a: is in the file twice, first on line 1; remove one of the two"},
		{"syntax", "apiVersion: v1\nkind: Namespace\nmetadata: {name: a\n---\napiVersion: v1\nkind: Namespac\nmetadata: {name: b}\n",
			"in.yaml:2: not valid YAML: did not find expected ',' or '}'; check indentation, quotes and brackets near this line\n" +
				`in.yaml:6: kind: unknown kind "Namespac" in apiVersion "v1"; did you mean Namespace (v1)?`},
		{"key twice", "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\nmetadata: {name: b}\n",
			"in.yaml:4: Namespace/a: metadata: is set twice; remove one of the two"},
		{"secret hidden", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  password: 12345678\n",
			"in.yaml:5: Secret/default/a: stringData.password: must be a string, but is the number (not shown); write a string"},
		{"refused", "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec:\n  hosts: [a]\n  http:\n  - delegate: {name: b}\n    route: [{destination: {host: a}}]\n",
			"in.yaml:7: VirtualService/default/a: spec.http[0].delegate: is not supported; write the routes into this VirtualService"},
		{"list item", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Namespace\n  metadata: {name: B}\n",
			`in.yaml:6: Namespace/B: metadata.name: "B" is not a DNS label; use at most 63 lower-case letters, digits and '-', and begin and end with a letter or digit`},
		{"not an object", "- a\n", "in.yaml:1: a manifest must be an object with apiVersion, kind and metadata; see `heddle get services -o yaml` for an example"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, errs := Decode(strings.NewReader(c.text), "in.yaml", "")
			if got := errors.Join(errs...); got == nil || got.Error() != c.want {
				t.Errorf("got  %v\nwant %s", got, c.want)
			}
		})
	}
}

func TestDecodeJSONListAndRoundTrip(t *testing.T) {
	objs := decodeAll(t, `{"apiVersion": "v1", "kind": "List", "items": [
	{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "cart", "namespace": "shop"},
	 "spec": {"selector": {"app": "cart"}, "ports": [{"name": "grpc", "port": 7070}]}},
	{"apiVersion": "networking.istio.io/v1alpha3", "kind": "VirtualService", "metadata": {"name": "cart", "namespace": "shop"},
	 "spec": {"hosts": ["cart"], "http": [{"timeout": "1m", "route": [{"destination": {"host": "cart"}}]}]}}]}`)
	if len(objs) != 2 {
		t.Fatalf("got %d objects", len(objs))
	}
	for _, o := range objs {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var back Object
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		var a, b bytes.Buffer
		if err := Encode(&a, "yaml", false, o); err != nil {
			t.Fatal(err)
		}
		if err := Encode(&b, "yaml", false, &back); err != nil {
			t.Fatal(err)
		}
		if a.String() != b.String() {
			t.Errorf("got %s\nwant %s", b.String(), a.String())
		}
		again := decodeAll(t, a.String())
		var c bytes.Buffer
		if err := Encode(&c, "yaml", false, again...); err != nil {
			t.Fatal(err)
		}
		if c.String() != a.String() {
			t.Errorf("apply of get's output gives %s\nwant %s", c.String(), a.String())
		}
	}
	if !strings.Contains(fmt.Sprint(objs[1].Kind.APIVersion()), "networking.istio.io/v1") {
		t.Error("stored version is not v1")
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	o := decodeAll(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {password: hunter2}\n")[0]
	var shown, full bytes.Buffer
	if err := Encode(&shown, "yaml", false, o.Redacted()); err != nil {
		t.Fatal(err)
	}
	if err := Encode(&full, "yaml", false, o); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(o), fmt.Sprintf("%v %+v %#v %s", o, o, o, o), shown.String()} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, "aHVudGVyMg") {
			t.Errorf("the secret is shown in %s", text)
		}
	}
	if !strings.Contains(full.String(), "password: aHVudGVyMg==") {
		t.Errorf("get -o yaml has no data: %s", full.String())
	}
}

// An object that is wrong from end to end is told so a bounded number of times, and each of its parts is looked at once.
func TestErrorsOfOneObjectAreBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: many}\nspec:\n  resolution: DNS\n  hosts: [a.example.com]\n  ports:\n")
	for range 50_000 {
		text.WriteString("  - {number: 80, name: a, protocol: TCP}\n")
	}
	objects, errs := Decode(strings.NewReader(text.String()), "many.yaml", "")
	if len(objects) != 0 || len(errs) != maxErrors+1 { // And one that says that the file was not read further.
		t.Fatalf("%d objects, %d errors", len(objects), len(errs))
	}
	for i, want := range map[int]string{0: "spec.ports: has 50000 items; use at most 256", 1: "spec.ports[1].number: 80 is also the number of ports[0]", maxErrors - 1: "too many errors"} {
		if !strings.Contains(errs[i].Error(), want) {
			t.Errorf("error %d: %v, not %q", i, errs[i], want)
		}
	}
}

func TestHostileManifests(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  annotations:\n    a: &a {b: c}\nx0: &x0 [a, b, c, d, e, f, g, h, i, j]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&bomb, "x%d: &x%d [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*x%d, ", i-1), 10))
	}
	bomb.WriteString("status: *x11\n")
	for name, text := range map[string]string{
		"aliases": bomb.String(),
		"deep":    "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\nstatus: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
		"cycle":   "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\nstatus: &a [*a]\n",
		"bytes":   "\x00\xff\xfe{{{",
	} {
		t.Run(name, func(t *testing.T) {
			if _, errs := Decode(strings.NewReader(text), "in.yaml", ""); len(errs) == 0 {
				t.Error("was accepted")
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {selector: {a: b}, ports: [{port: 80}]}\n")
	f.Fuzz(func(t *testing.T, text string) {
		objs, _ := Decode(strings.NewReader(text), "in.yaml", "")
		for _, o := range objs {
			if errs := CheckForm(o); len(errs) > 0 {
				t.Errorf("decoded, but %v", errs)
			}
		}
	})
}

// Clusters may each have an object of a name, and one file may hold both.
func TestOneNameInTwoClusters(t *testing.T) {
	const text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: {heddle.io/cluster: %s}}\n"
	found, errs := Decode(strings.NewReader(fmt.Sprintf(text, "c1")+"---\n"+fmt.Sprintf(text, "c2")), "in.yaml", "")
	if len(errs) != 0 || len(found) != 2 {
		t.Errorf("%d objects, %v", len(found), errs)
	}
	if _, errs := Decode(strings.NewReader(fmt.Sprintf(text, "c1")+"---\n"+fmt.Sprintf(text, "c1")), "in.yaml", ""); len(errs) != 1 {
		t.Errorf("the same cluster's twice: %v", errs)
	}
}

// TestANewKind is the recipe of ARCHITECTURE.md: a kind is its file, which this test stands for, and one definition.
func TestANewKind(t *testing.T) {
	route := &Kind{
		Group: "example.com", Version: "v1", Versions: []string{"v1"}, Kind: "ExampleRoute", Plural: "exampleroutes", Namespaced: true,
		New: func() Resource { return &gatewayv1.TCPRoute{} },
	}
	with := func(all []definition) { Kinds, defined, treatments = kindsOf(all), definedBy(all), treatmentsOf(all) }
	t.Cleanup(func() { with(definitions) })
	with(append(slices.Clone(definitions), definition{
		kind: route, fields: gatewayAPITreatments,
		form: formOf(func(c *checker, r *gatewayv1.TCPRoute) {
			if len(r.Spec.Rules) == 0 {
				c.fail("spec.rules", "missing", "give one")
			}
		}),
		defaults: defaultsOf(func(r *gatewayv1.TCPRoute) { r.Labels = map[string]string{"filled": "in"} }),
	}))
	if k, err := FindKind("exampleroutes.example.com"); k != route || err != nil {
		t.Errorf("found %v, %v", k, err)
	}
	const head = "apiVersion: example.com/v1\nkind: ExampleRoute\nmetadata: {name: a}\n"
	o := decodeAll(t, head+"spec: {rules: [{backendRefs: [{name: b}]}]}\n")[0]
	if o.Key() != (Key{"example.com", "ExampleRoute", "default", "a"}) || o.GetLabels()["filled"] != "in" {
		t.Errorf("decoded %v with %v", o.Key(), o.GetLabels())
	}
	for spec, want := range map[string]string{"{}": "spec.rules: missing", "{useDefaultGateways: All, rules: [{}]}": "spec.useDefaultGateways: is not supported", "{rule: 1}": "unknown field"} {
		if _, errs := Decode(strings.NewReader(head+"spec: "+spec+"\n"), "in.yaml", ""); len(errs) == 0 || !strings.Contains(errs[0].Error(), want) {
			t.Errorf("%s: %v, want %q", spec, errs, want)
		}
	}
}
