package ca

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/cluster"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// join has a primary issue a member's intermediate, and writes it to a directory.
func join(t *testing.T, primary *Authority, name, dir string, c *clock) Issuer {
	t.Helper()
	issuer := obtain(t, primary, name)
	if err := CreateMember(Options{Dir: dir, Cluster: name, TrustDomain: "cluster.local", Now: c.Now}, issuer); err != nil {
		t.Fatal(err)
	}
	return issuer
}

func obtain(t *testing.T, primary *Authority, name string) Issuer {
	t.Helper()
	key, request, err := NewIntermediateRequest(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := RequestKeyHash(request)
	if err != nil {
		t.Fatal(err)
	}
	i, err := primary.SignIntermediate(request, name, hash)
	if err != nil {
		t.Fatal(err)
	}
	return Issuer{Key: key, Certificate: i.Certificate, Root: i.Root}
}

func openMemberOf(t *testing.T, dir, name string, c *clock) *Authority {
	t.Helper()
	a, err := Open(Options{Dir: dir, Cluster: name, TrustDomain: "cluster.local", Now: c.Now, Member: true})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func sign(t *testing.T, a *Authority) Certificate {
	t.Helper()
	_, request, err := NewRequest(cart, ECDSAP256, nil)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := a.Sign(request, cart, 0)
	if err != nil {
		t.Fatal(err)
	}
	return issued
}

// forge signs a leaf with an authority's intermediate as its thief could: any names.
func forge(t *testing.T, a *Authority, dns ...string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(7), NotBefore: start, NotAfter: start.Add(time.Hour),
		URIs: []*url.URL{cart.URI()}, DNSNames: dns, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}},
		a.state().current.certificate, key.Public(), a.state().current.key)
	if err != nil {
		t.Fatal(err)
	}
	return encode(der)
}

// signBy signs a certificate with the root itself.
func signBy(t *testing.T, a *Authority, template *x509.Certificate, key any) []byte {
	t.Helper()
	var err error
	if template.SerialNumber, err = a.state().serial(); err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.state().root.certificate, key, a.state().root.key)
	if err != nil {
		t.Fatal(err)
	}
	return encode(der)
}

// opensslVerify asks the openssl command, with the clock at start.
func opensslVerify(t *testing.T, root, intermediate, leaf []byte) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string][]byte{"root.pem": root, "intermediate.pem": intermediate, "leaf.pem": leaf} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("openssl", "verify", "-x509_strict", "-attime", "1893456060", "-CAfile", "root.pem", "-untrusted", "intermediate.pem", "leaf.pem")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestMembersAreConstrainedToTheirOwnName(t *testing.T) {
	c := &clock{start}
	primary := open(t, t.TempDir(), c)
	dir := t.TempDir()
	join(t, primary, "cluster2", dir, c)
	member := openMemberOf(t, dir, "cluster2", c)
	issued := sign(t, member)
	l := leaf(t, issued, c.now)
	own2 := cluster.Issuer{Cluster: "cluster2", Membership: MembershipOf(member.state().current.certificate)}
	if name := own2.Name("cluster.local"); !slices.Equal(l.DNSNames, []string{name, cart.ServiceAccount + "." + cart.Namespace + "." + name}) ||
		!strings.HasSuffix(name, ".cluster2.clusters.cluster.local") || !slices.Equal(member.Issuers(), []cluster.Issuer{own2}) {
		t.Fatalf("DNS names %v, issuers %v", l.DNSNames, member.Issuers())
	}
	block, rest := pem.Decode(issued.Chain)
	own := pem.EncodeToMemory(block)
	if !bytes.Equal(member.Roots(), primary.Roots()) {
		t.Fatal("the member trusts another root")
	}
	for _, test := range []struct {
		name, want string
		leaf       []byte
	}{
		{"its own certificate", "OK", own},
		{"another cluster's name", "permitted subtree violation", forge(t, member, "cluster1.clusters.cluster.local")},
		{"both names", "permitted subtree violation", forge(t, member, own2.Name("cluster.local"), "cluster1.clusters.cluster.local")},
		{"another account of its own", "OK", forge(t, member, own2.Account("cluster.local", "bank", "teller"))},
		{"another cluster's account", "permitted subtree violation", forge(t, member, own2.Name("cluster.local"), cluster.Issuer{Cluster: "cluster1"}.Account("cluster.local", "bank", "teller"))},
		{"its cluster's name without its membership", "permitted subtree violation", forge(t, member, "cluster2.clusters.cluster.local")},
		{"the same name after it", "permitted subtree violation", forge(t, member, (cluster.Issuer{Cluster: "cluster2", Membership: strings.Repeat("ab", 32)}).Name("cluster.local"))},
		{"all clusters", "permitted subtree violation", forge(t, member, "*.clusters.cluster.local")},
		{"all memberships", "permitted subtree violation", forge(t, member, "*.cluster2.clusters.cluster.local")},
		{"the federation's name", "permitted subtree violation", forge(t, member, "federation.clusters.cluster.local")},
	} {
		out, err := opensslVerify(t, primary.Roots(), rest, test.leaf)
		if !strings.Contains(out, test.want) || (err == nil) != (test.want == "OK") {
			t.Errorf("openssl about %s: %v\n%s", test.name, err, out)
		}
		parsed, err := parseCertificate(test.leaf)
		if err != nil {
			t.Fatal(err)
		}
		intermediates := x509.NewCertPool()
		intermediates.AppendCertsFromPEM(rest)
		_, err = parsed.Verify(x509.VerifyOptions{Roots: member.MeshPool(), Intermediates: intermediates, CurrentTime: c.now})
		if (err == nil) != (test.want == "OK") {
			t.Errorf("Go about %s: %v", test.name, err)
		}
	}
	// A chain of the primary itself, too.
	chain := sign(t, primary).Chain
	block, rest = pem.Decode(chain)
	if out, err := opensslVerify(t, primary.Roots(), rest, pem.EncodeToMemory(block)); err != nil {
		t.Errorf("the primary's own chain: %v\n%s", err, out)
	}
}

func TestSignIntermediateRefuses(t *testing.T) {
	c := &clock{start}
	primary := open(t, t.TempDir(), c)
	_, request, err := NewIntermediateRequest("cluster2", nil)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := RequestKeyHash(request)
	if err != nil {
		t.Fatal(err)
	}
	broken := bytes.Clone(request)
	broken[len(broken)/2] ^= 1
	for _, test := range []struct {
		name, cluster, membership string
		request                   []byte
	}{
		{"its own name", "cluster1", hash, request},
		{"the federation's name", "federation", hash, request},
		{"no name", "", hash, request},
		{"a name with a dot", "a.b", hash, request},
		{"no membership", "cluster2", "", request},
		{"a broken request", "cluster2", hash, broken},
		{"a long request", "cluster2", hash, append(bytes.Clone(request), make([]byte, MaxRequestBytes)...)},
	} {
		if _, err := primary.SignIntermediate(test.request, test.cluster, test.membership); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	dir := t.TempDir()
	join(t, primary, "cluster2", dir, c)
	if _, err := openMemberOf(t, dir, "cluster2", c).SignIntermediate(request, "cluster3", hash); !errors.Is(err, ErrNoRoot) {
		t.Errorf("a member signed an intermediate: %v", err)
	}
}

func TestIntermediateWithoutConstraintIsReplaced(t *testing.T) {
	c := &clock{start}
	dir := t.TempDir()
	a := open(t, dir, c)
	key := a.state().current.key.(*ecdsa.PrivateKey)
	template := a.state().intermediateTemplate("cluster1", nil)
	template.PermittedDNSDomainsCritical = false
	old, err := a.state().create("intermediate", template, a.state().root, key)
	if err != nil {
		t.Fatal(err)
	}
	again := open(t, dir, c)
	if again.state().current.certificate.Equal(old.certificate) || !constrained(again.state().current.certificate, a.state().names()) {
		t.Fatal("an intermediate without constraint is still in use")
	}
	if again.RootHash() != a.RootHash() {
		t.Fatal("the root changed")
	}
	leaf(t, sign(t, again), c.now)
}

func TestControllerIdentity(t *testing.T) {
	c := &clock{start}
	primary := open(t, t.TempDir(), c)
	dir := t.TempDir()
	join(t, primary, "cluster2", dir, c)
	member := openMemberOf(t, dir, "cluster2", c)
	for _, test := range []struct {
		a       *Authority
		name    string
		primary bool
	}{{primary, "cluster1", true}, {member, "cluster2", false}} {
		got, err := test.a.Controller()
		if err != nil {
			t.Fatal(err)
		}
		intermediate := test.a.state().current.certificate
		if of, err := ControllerOf(got.Leaf, intermediate, "cluster.local"); err != nil || of.Cluster != test.name || of.Membership != MembershipOf(intermediate) {
			t.Errorf("%v, %v", of, err)
		}
		if IsPrimary(got.Leaf, "cluster.local") != test.primary {
			t.Errorf("%s: primary is %v", test.name, !test.primary)
		}
		verifyTLS(t, *got, primary.MeshPool(), c.now)
		if again, _ := test.a.Controller(); again != got {
			t.Errorf("%s: a fresh certificate was made again", test.name)
		}
	}
	first, _ := member.Controller()
	c.now = c.now.Add(WorkloadLifetime * 3 / 4)
	if second, err := member.Controller(); err != nil || second == first {
		t.Errorf("not renewed at half its life: %v", err)
	}
	membership := MembershipOf(member.state().current.certificate)
	dns := cluster.Issuer{Cluster: "cluster2", Membership: membership}.Name("cluster.local")
	for _, bad := range []struct{ name, uri, dns string }{
		{"a workload", "spiffe://cluster.local/ns/a/sa/b", dns},
		{"another trust domain", "spiffe://evil.example/cluster/cluster2/controller", dns},
		{"another cluster's DNS name", "spiffe://cluster.local/cluster/cluster1/controller", dns},
		{"the name without membership", "spiffe://cluster.local/cluster/cluster2/controller", "cluster2.clusters.cluster.local"},
		{"a longer path", "spiffe://cluster.local/cluster/cluster2/controller/x", dns},
		{"a path in the name", "spiffe://cluster.local/cluster/a/b/controller", cluster.Issuer{Cluster: "a/b", Membership: membership}.Name("cluster.local")},
		{"a query", "spiffe://cluster.local/cluster/cluster2/controller?x", dns},
	} {
		uri, err := url.Parse(bad.uri)
		if err != nil {
			t.Fatal(err)
		}
		if of, err := ControllerOf(&x509.Certificate{URIs: []*url.URL{uri}, DNSNames: []string{bad.dns}}, member.state().current.certificate, "cluster.local"); err == nil {
			t.Errorf("%s is controller of %v", bad.name, of)
		}
	}
	// What the workloads' authority signs never is one.
	_, request, _ := NewRequest(cart, ECDSAP256, nil)
	for _, account := range []string{"../../cluster/cluster1/controller", "controller/"} {
		if _, err := primary.Sign(request, Identity{TrustDomain: "cluster.local", Namespace: "cluster", ServiceAccount: account}, 0); !errors.Is(err, ErrRefused) {
			t.Errorf("signed account %q: %v", account, err)
		}
	}
}

func verifyTLS(t *testing.T, c tls.Certificate, roots *x509.CertPool, now time.Time) {
	t.Helper()
	intermediates := x509.NewCertPool()
	for _, der := range c.Certificate[1:] {
		parsed, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		intermediates.AddCert(parsed)
	}
	if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		t.Fatal(err)
	}
}

func TestMemberRenewsThroughThePrimary(t *testing.T) {
	c := &clock{start}
	primary := open(t, t.TempDir(), c)
	dir := t.TempDir()
	issuer := join(t, primary, "cluster2", dir, c)
	member := openMemberOf(t, dir, "cluster2", c)
	// A certificate is backdated, so its life is a little longer than the nominal one.
	if got, want := member.RenewAt(), start.Add(IntermediateLifetime*2/3); got.Sub(want).Abs() > backdate {
		t.Fatalf("renewal at %s, want about %s", got, want)
	}
	before := member.state().current.certificate
	lost := errors.New("the primary is away")
	if err := member.Renew(context.Background(), func(context.Context, []byte) (Intermediate, error) { return Intermediate{}, lost }); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	if member.state().current.certificate != before {
		t.Fatal("a failed renewal changed the intermediate")
	}
	membership := MembershipOf(before)
	c.now = member.RenewAt()
	if err := member.Renew(context.Background(), func(_ context.Context, request []byte) (Intermediate, error) {
		return primary.SignIntermediate(request, "cluster2", membership)
	}); err != nil {
		t.Fatal(err)
	}
	if belongs(member.state().current.key, before) || MembershipOf(member.state().current.certificate) != membership {
		t.Fatal("the key is the old one, or the membership is lost")
	}
	leaf(t, sign(t, member), c.now)
	if again := openMemberOf(t, dir, "cluster2", c); !again.state().current.certificate.Equal(member.state().current.certificate) {
		t.Fatal("the renewed intermediate was not kept")
	}
	// An answer that does not fit the key is refused, and what was in use stays.
	if err := member.Install(Issuer{Key: issuer.Key, Certificate: encode(member.state().current.certificate.Raw), Root: primary.Roots()}, 0); err == nil {
		t.Fatal("an intermediate of another key was taken")
	}
	leaf(t, sign(t, member), c.now)
}

func TestChangeOfTheRoot(t *testing.T) {
	c := &clock{start}
	primary := open(t, t.TempDir(), c)
	dir := t.TempDir()
	own, err := Open(Options{Dir: dir, Cluster: "cluster2", TrustDomain: "cluster.local", Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	alone := own.Roots()
	if err := own.Trust(primary.Roots()); err != nil {
		t.Fatal(err)
	}
	if err := own.Trust(primary.Roots()); err != nil {
		t.Fatal(err)
	}
	both := append(bytes.Clone(alone), primary.Roots()...)
	old := sign(t, own)
	if !bytes.Equal(old.Roots, both) {
		t.Fatal("certificates do not come with both roots")
	}
	reopened, err := Open(Options{Dir: dir, Cluster: "cluster2", TrustDomain: "cluster.local", Now: c.Now})
	if err != nil || !bytes.Equal(reopened.Roots(), both) {
		t.Fatalf("the trust was not kept: %v", err)
	}
	if err := own.Install(obtain(t, primary, "cluster2"), WorkloadLifetime+time.Minute); err != nil {
		t.Fatal(err)
	}
	fresh := sign(t, own)
	if want := append(primary.Roots(), alone...); !bytes.Equal(fresh.Roots, want) {
		t.Fatal("the new root does not come first, or the old one is gone at once")
	}
	// Either side of the change trusts the other.
	leaf(t, Certificate{Chain: old.Chain, Roots: fresh.Roots}, c.now)
	leaf(t, Certificate{Chain: fresh.Chain, Roots: old.Roots}, c.now)
	member := openMemberOf(t, dir, "cluster2", c)
	if !bytes.Equal(member.Roots(), fresh.Roots) {
		t.Fatal("the roots were not kept")
	}
	c.now = c.now.Add(WorkloadLifetime + 2*time.Minute)
	for _, a := range []*Authority{own, member} {
		if !bytes.Equal(a.Roots(), primary.Roots()) {
			t.Fatal("the old root is still trusted")
		}
	}
	// An intermediate of the same root leaves nothing to trust beside it.
	if err := own.Install(obtain(t, primary, "cluster2"), WorkloadLifetime); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(trustedPath(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("earlier roots are still on disk: %v", err)
	}
}

func TestOnlyRootsAreTrusted(t *testing.T) {
	c := &clock{start}
	primary, own := open(t, t.TempDir(), c), open(t, t.TempDir(), c)
	if err := own.Trust([]byte("x")); err == nil {
		t.Fatal("garbage was trusted")
	}
	if err := own.Trust(encode(primary.state().current.certificate.Raw)); err == nil {
		t.Fatal("an intermediate was trusted as root")
	}
}

func TestOpenMemberNamesWhatIsBroken(t *testing.T) {
	c := &clock{start}
	primary := open(t, t.TempDir(), c)
	other, err := Open(Options{Dir: t.TempDir(), Cluster: "x", TrustDomain: "cluster.local", Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	good := obtain(t, primary, "cluster2")
	for _, test := range []struct {
		name, want string
		content    []byte
	}{
		{"nothing", "member.pem", nil},
		{"cut short", "does not hold key", good.Key},
		{"a foreign root", "not signed by the root", bytes.Join([][]byte{good.Key, good.Certificate, other.Roots()}, nil)},
		{"a foreign key", "not the intermediate's", bytes.Join([][]byte{obtain(t, primary, "cluster2").Key, good.Certificate, good.Root}, nil)},
		{"another cluster's", "may issue", func() []byte {
			i := obtain(t, primary, "cluster3")
			return bytes.Join([][]byte{i.Key, i.Certificate, i.Root}, nil)
		}()},
	} {
		dir := t.TempDir()
		if test.content != nil {
			if err := os.WriteFile(memberPath(dir), test.content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Open(Options{Dir: dir, Cluster: "cluster2", TrustDomain: "cluster.local", Now: c.Now, Member: true})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	// A member never makes a root.
	dir := t.TempDir()
	_, _ = Open(Options{Dir: dir, Cluster: "cluster2", TrustDomain: "cluster.local", Now: c.Now, Member: true})
	if _, err := os.Stat(filepath.Join(dir, "root.pem")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a member made a root: %v", err)
	}
}

func TestExpiredIntermediateOfAMember(t *testing.T) {
	c := &clock{start}
	primary := open(t, t.TempDir(), c)
	dir := t.TempDir()
	join(t, primary, "cluster2", dir, c)
	c.now = c.now.Add(IntermediateLifetime + time.Hour)
	member := openMemberOf(t, dir, "cluster2", c)
	_, request, _ := NewRequest(cart, ECDSAP256, nil)
	if _, err := member.Sign(request, cart, 0); err == nil || !strings.Contains(err.Error(), "new token") {
		t.Fatal(err)
	}
}
