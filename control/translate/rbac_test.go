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

// TestServerNamesAreLowered as the proxy lowers what clients send: other letters would never match.
func TestServerNamesAreLowered(t *testing.T) {
	for value, want := range map[string]string{
		"Admin.Example.com": "admin.example.com", "*.Example.com": ".example.com", "Admin.*": "admin.", "*": ".+",
	} {
		got := conditionPermissions(model.Condition{Kind: model.OnServerName, Values: model.Values[string]{In: []string{value}}})
		if len(got) != 1 {
			t.Fatalf("%s: %v", value, got)
		}
		m := got[0].GetRequestedServerName()
		if text := m.GetExact() + m.GetPrefix() + m.GetSuffix() + m.GetSafeRegex().GetRegex(); text != want {
			t.Errorf("%s: %q, want %q", value, text, want)
		}
	}
}
