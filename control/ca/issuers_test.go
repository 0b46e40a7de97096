package ca

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/cluster"
)

func memberships(a *Authority) []string {
	var out []string
	for _, i := range a.Issuers() {
		out = append(out, i.Membership)
	}
	return out
}

func membershipOf(t *testing.T, i Issuer) string {
	t.Helper()
	c, err := parseCertificate(i.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	return MembershipOf(c)
}

// TestJoiningKeepsTheFormerNames: a running cluster's certificates are accepted before, while and after it becomes another
// issuer, and its former names are dropped with the last certificate that has them.
func TestJoiningKeepsTheFormerNames(t *testing.T) {
	c := &clock{start}
	primary := open(t, t.TempDir(), c)
	dir := t.TempDir()
	own, err := Open(Options{Dir: dir, Cluster: "cluster2", TrustDomain: "cluster.local", Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(when string, a *Authority, want ...string) {
		t.Helper()
		slices.Sort(want)
		if got := memberships(a); !slices.Equal(got, want) {
			t.Fatalf("%s: memberships %q, want %q", when, got, want)
		}
	}
	expect("alone", own, "")
	for _, step := range []string{"it joins", "it joins anew, after it was removed"} {
		before := memberships(own)
		next := obtain(t, primary, "cluster2")
		if err := own.Expect(next.Certificate); err != nil {
			t.Fatal(err)
		}
		during := append(slices.Clone(before), membershipOf(t, next))
		expect(step+", not yet", own, during...)
		if err := own.Install(next, WorkloadLifetime); err != nil {
			t.Fatal(err)
		}
		expect(step, own, during...)
		expect(step+", and its controller starts again", openMemberOf(t, dir, "cluster2", c), during...)
		l := leaf(t, sign(t, own), c.now)
		if !slices.Contains(l.DNSNames, own.options.issuer(membershipOf(t, next)).Name("cluster.local")) {
			t.Fatalf("%s: its certificates have the names %q", step, l.DNSNames)
		}
		c.now = c.now.Add(WorkloadLifetime)
		expect(step+", an hour later", own, membershipOf(t, next))
	}
	// A rotation is no change of the issuer.
	before := memberships(own)
	if err := own.Renew(context.Background(), func(_ context.Context, request []byte) (Intermediate, error) {
		return primary.SignIntermediate(request, "cluster2", before[0])
	}); err != nil {
		t.Fatal(err)
	}
	expect("it was rotated", own, before...)
	if err := own.Expect([]byte("x")); err == nil {
		t.Error("garbage was expected")
	}
	// Joining anew while the controller is off: its workloads may run.
	join(t, primary, "cluster2", dir, c)
	again := openMemberOf(t, dir, "cluster2", c)
	if got := memberships(again); len(got) != 2 || !slices.Contains(got, before[0]) {
		t.Errorf("memberships %q, before %q", got, before)
	}
}

// TestAnEarlyIntermediateIsReplaced: one that may issue the name of the cluster whatever its membership does its work, and
// is renewed at once.
func TestAnEarlyIntermediateIsReplaced(t *testing.T) {
	c := &clock{start}
	primary := open(t, t.TempDir(), c)
	key, request, err := NewIntermediateRequest("cluster2", nil)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parseRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	template := primary.state().intermediateTemplate("cluster2", []string{"cluster2.clusters.cluster.local"})
	template.Subject.SerialNumber = strings.Repeat("ab", 32)
	dir := t.TempDir()
	early := Issuer{Key: key, Certificate: signBy(t, primary, template, parsed.PublicKey), Root: primary.Roots()}
	if err := CreateMember(Options{Dir: dir, Cluster: "cluster2", TrustDomain: "cluster.local", Now: c.Now}, early); err != nil {
		t.Fatal(err)
	}
	member := openMemberOf(t, dir, "cluster2", c)
	if member.RenewAt().After(c.now) {
		t.Errorf("it is renewed at %s", member.RenewAt())
	}
	l := leaf(t, sign(t, member), c.now)
	if want := (cluster.Issuer{Cluster: "cluster2", Membership: strings.Repeat("ab", 32)}); !want.Issued("cluster.local", l.DNSNames) || !slices.Equal(member.Issuers(), []cluster.Issuer{want}) {
		t.Errorf("names %q, issuers %v", l.DNSNames, member.Issuers())
	}
	if err := member.Renew(context.Background(), func(_ context.Context, request []byte) (Intermediate, error) {
		return primary.SignIntermediate(request, "cluster2", strings.Repeat("ab", 32))
	}); err != nil {
		t.Fatal(err)
	}
	if !member.RenewAt().After(c.now.Add(24 * time.Hour)) {
		t.Errorf("it is renewed again at %s", member.RenewAt())
	}
	if bytes.Contains(early.Certificate, encode(member.state().current.certificate.Raw)) {
		t.Error("it is the same")
	}
}
