package model

import "testing"

// Of policies for the same target the oldest counts.
func TestBackendTLSByTarget(t *testing.T) {
	whole, port, ninth := BackendTarget{Host: "a"}, BackendTarget{Host: "a", Port: 8443}, BackendTarget{Host: "a", Port: 9443}
	oldest, middle, youngest := &BackendTLS{Name: "oldest", Targets: []BackendTarget{whole}}, &BackendTLS{Name: "middle", Targets: []BackendTarget{port, whole}}, &BackendTLS{Name: "youngest", Targets: []BackendTarget{port, ninth}}
	got := (&Mesh{BackendTLS: []*BackendTLS{oldest, middle, youngest}}).BackendTLSByTarget()
	if len(got) != 3 || got[whole] != oldest || got[port] != middle || got[ninth] != youngest {
		t.Errorf("%v", got)
	}
}
