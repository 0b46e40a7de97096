package cluster

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"slices"
	"strings"
)

// Issuer is the authority of a cluster, as certificates tell it. Everything that asks whether a certificate is of an
// account, and of which cluster, asks it here: sidecars, gateways, controllers and checks go by these names.
//
// The names are DNS names, because those are what X.509 can keep an authority from issuing (RFC 5280 §4.2.1.10): its
// intermediate is constrained to [Issuer.Name], and to what is below it. Nothing else in a certificate, be it a URI, the
// subject or another kind of name, says which cluster it is of.
type Issuer struct {
	// Cluster is its name.
	Cluster string `json:"cluster"`
	// Membership is the SHA-256, hexadecimal, of the key that the cluster joined its mesh with. It is empty for the cluster
	// that holds the root.
	Membership string `json:"membership,omitempty"`
}

// membershipDigits is how much of a membership is in names: 128 bits, for which nobody finds a second key. A label has
// room for 63 characters (RFC 1035 §2.3.4), the whole has 64.
const membershipDigits = 32

// maxName is the longest DNS name (RFC 1035 §2.3.4, less the length octets of the first label and the root).
const maxName = 253

// accountLabel is a name that can be a label as it is.
var accountLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// Name is the DNS name that every certificate issued in the cluster carries beside its SPIFFE identity:
// <cluster>.clusters.<trust domain>, and <membership>.<cluster>.clusters.<trust domain> for members, so that a cluster
// that joins under the name of one that was removed is another issuer.
func (i Issuer) Name(trustDomain string) string {
	name := CertificateName(trustDomain, i.Cluster)
	if i.Membership == "" {
		return name
	}
	return i.Membership[:min(len(i.Membership), membershipDigits)] + "." + name
}

// Account is the DNS name that says both who a certificate is of and who issued it: <account>.<namespace>.<Name>. Clients
// demand it of servers, because matchers of several names accept a certificate that has any of them.
//
// An account that is no label, or too long for the whole, is there as "_" and the hash of its name: no other account's
// name can read so.
func (i Issuer) Account(trustDomain, namespace, account string) string {
	below := i.Namespace(trustDomain, namespace)
	if accountLabel.MatchString(account) && len(account)+len(below) <= maxName {
		return account + below
	}
	sum := sha256.Sum256([]byte(account))
	return "_" + strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])) + below
}

// Namespace is what the names of all accounts of a namespace end in, with its leading dot. Namespaces have no dots, so no
// other's end so.
func (i Issuer) Namespace(trustDomain, namespace string) string {
	return "." + namespace + "." + i.Name(trustDomain)
}

// Issued says whether a certificate with these DNS names, whose chain was verified, was issued in the cluster.
func (i Issuer) Issued(trustDomain string, dnsNames []string) bool {
	return slices.Contains(dnsNames, i.Name(trustDomain))
}

// Proves says whether a certificate with these DNS names, whose chain was verified, is of the account that a SPIFFE
// identity names and was issued in the cluster.
func (i Issuer) Proves(trustDomain, identity string, dnsNames []string) bool {
	namespace, account, ok := AccountOf(trustDomain, identity)
	return ok && slices.Contains(dnsNames, i.Account(trustDomain, namespace, account))
}

// Compare orders issuers by cluster, then by membership.
func (i Issuer) Compare(o Issuer) int {
	return cmp.Or(cmp.Compare(i.Cluster, o.Cluster), cmp.Compare(i.Membership, o.Membership))
}

// AccountOf takes spiffe://<trust domain>/ns/<namespace>/sa/<account> apart, and says whether it reads so.
func AccountOf(trustDomain, identity string) (namespace, account string, ok bool) {
	rest, ok := strings.CutPrefix(identity, "spiffe://"+trustDomain+"/ns/")
	if !ok {
		return "", "", false
	}
	namespace, account, ok = strings.Cut(rest, "/sa/")
	return namespace, account, ok && accountLabel.MatchString(namespace) && account != "" && !strings.Contains(account, "/")
}
