package resolve

import (
	"fmt"
	"strings"
	"testing"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// One namespace cannot fill the memory of proxies that serve others too, with however many objects.
func TestTheExpressionsOfANamespaceAreBounded(t *testing.T) {
	routes := func(namespace, name string, count int) store.Write {
		var text strings.Builder
		fmt.Fprintf(&text, "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %s, namespace: %s}\nspec:\n  hosts: [%[1]s]\n  http:\n", name, namespace)
		for range count {
			text.WriteString("  - {match: [{uri: {regex: '[^a]{1000}'}}], route: [{destination: {host: shop}}]}\n")
		}
		o := decoded(t, text.String())
		return store.Write{Key: o.Key(), Object: o}
	}
	m := New(model.DefaultSettings("one"))
	admit := func(writes ...store.Write) []error {
		writes, _, errs := m.Admit(writes)
		if len(errs) > 0 {
			return errs
		}
		change := Change{Objects: map[objects.Key]*objects.Object{}}
		for _, w := range writes {
			change.Objects[w.Key] = w.Object
		}
		m.Update(change)
		return nil
	}
	for i := range 4 {
		if errs := admit(routes("one", fmt.Sprint("r", i), 45)); len(errs) > 0 {
			t.Fatal(i, errs)
		}
	}
	errs := admit(routes("one", "r4", 3), routes("one", "r5", 1))
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "VirtualService/one/r4: the regular expressions of namespace one have a size of more than 4194304 together") {
		t.Errorf("%v", errs)
	}
	for what, writes := range map[string][]store.Write{
		"another namespace": {routes("two", "r", 45)}, "one with room": {routes("one", "r4", 2)},
		"the same again": {routes("one", "r0", 45)}, "one smaller, another new": {routes("one", "r1", 40), routes("one", "r6", 5)},
	} {
		if errs := admit(writes...); len(errs) > 0 {
			t.Errorf("%s: %v", what, errs)
		}
	}
	for key := range m.entries {
		m.Update(Change{Objects: map[objects.Key]*objects.Object{key: nil}})
	}
	if len(m.regexSizes) != 0 {
		t.Errorf("%v is left of nothing", m.regexSizes)
	}
}
