package federation

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/server/client"
)

func (n *node) recorded() []audit.Record {
	n.t.Helper()
	var out []audit.Record
	err := n.audit.Read(context.Background(), client.AuditFilter{}, func(line []byte) error {
		var r audit.Record
		err := json.Unmarshal(line, &r)
		out = append(out, r)
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// Who joined, by which token, and whose intermediate was signed again, is recorded; the token is not.
func TestJoinsAndRenewalsAreRecorded(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	token := p.token()
	if _, err := joinAs(t, p, "cluster2", p.address, token); err != nil {
		t.Fatal(err)
	}
	parsed, err := ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	got := p.recorded()
	if len(got) != 2 || got[0].Action != "cluster.join" || got[0].Result != audit.Begun || got[0].Who != "join token "+parsed.ID || got[0].From == "" ||
		got[0].Objects[0].Name != "Cluster/cluster2" || got[1].ID != got[0].ID || got[1].Result != audit.Done {
		t.Errorf("%+v", got)
	}
	a := p.joinMember("cluster3")
	eventually(t, "it is connected", func() bool { return a.f.Status().Connected })
	if err := a.f.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	got = p.recorded()
	last := got[len(got)-1]
	if last.Action != "sign" || last.Who != "cluster cluster3" || last.Result != audit.Done {
		t.Errorf("%+v", last)
	}
	for _, r := range got {
		if text, err := json.Marshal(r); err != nil || strings.Contains(string(text), parsed.secret) {
			t.Errorf("%s %v", text, err)
		}
	}
}

// What cannot be recorded is not signed, and the token can be used later.
func TestAJoinThatCannotBeRecordedIsRefused(t *testing.T) {
	p := newNode(t, "cluster1", newLink(), &clock{})
	broken, err := audit.Open(audit.Options{Dir: p.place.Audit() + "2", Size: 1, Log: p.f.config.Log})
	if err != nil {
		t.Fatal(err)
	}
	ended, err := broken.Begin(audit.Record{})
	if err != nil {
		t.Fatal(err)
	}
	ended("", nil)
	if err := os.RemoveAll(p.place.Audit() + "2"); err != nil {
		t.Fatal(err)
	}
	good := p.f.config.Audit
	p.f.config.Audit = broken
	token := p.token()
	_, err = joinAs(t, p, "cluster2", p.address, token)
	failsWith(t, err, "cannot be recorded")
	if o, _ := p.f.clusterObject(t.Context(), "cluster2"); o != nil {
		t.Errorf("it joined: %+v", o)
	}
	p.f.config.Audit = good
	if _, err := joinAs(t, p, "cluster2", p.address, token); err != nil {
		t.Error(err)
	}
}
