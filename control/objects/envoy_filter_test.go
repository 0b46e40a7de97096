package objects

import (
	"strings"
	"testing"

	"heddle.io/heddle/control/peer"
)

// What a patch adds, proxies name, and one who names what no proxy may is cut off.
func TestNamesThatPatchesAddAreBounded(t *testing.T) {
	filter := func(name string) []error {
		_, errs := Decode(strings.NewReader(`
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: { name: a }
spec: { configPatches: [{ applyTo: CLUSTER, patch: { operation: ADD, value: { name: "`+name+`", connect_timeout: 1s } } }] }
`), "in.yaml", "")
		return errs
	}
	if errs := filter(strings.Repeat("a", peer.MaxName)); len(errs) != 0 {
		t.Errorf("as long as one may be: %v", errs)
	}
	if errs := filter(strings.Repeat("a", peer.MaxName+1)); len(errs) != 1 || !strings.Contains(errs[0].Error(), "its name is longer than 4096 bytes") {
		t.Errorf("%v", errs)
	}
}
