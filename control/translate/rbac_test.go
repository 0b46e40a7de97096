package translate

import (
	"testing"

	"heddle.io/heddle/control/model"
)

// TestNamesOfHostsHaveNoCase in conditions either: a DENY would be talked around by other letters.
func TestNamesOfHostsHaveNoCase(t *testing.T) {
	g := &generator{}
	values := model.Values[string]{In: []string{"Admin.Example.com"}}
	for name, ignored := range map[string]bool{"host": true, "Host": true, ":authority": true, "x-role": false, ":method": false} {
		got := g.conditionPrincipals(model.Condition{Kind: model.OnHeader, Header: name, Values: values})
		if len(got) != 1 || got[0].GetHeader().GetStringMatch().GetIgnoreCase() != ignored {
			t.Errorf("%s: %v, want the case ignored: %t", name, got, ignored)
		}
	}
}
