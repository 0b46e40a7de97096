package cluster

import "strings"

// CertificateName is the DNS name that every certificate issued in a cluster carries beside its SPIFFE identity:
// <cluster>.clusters.<trust domain>. The cluster's intermediate is constrained to it (RFC 5280 §4.2.1.10), so no other
// cluster can issue it, and verifiers, policies and telemetry can tell where a certificate comes from.
func CertificateName(trustDomain, cluster string) string {
	return cluster + ".clusters." + trustDomain
}

// FromCertificateName is the cluster of a name made by [CertificateName], or "".
func FromCertificateName(trustDomain, name string) string {
	found, ok := strings.CutSuffix(name, ".clusters."+trustDomain)
	if !ok || !namePattern.MatchString(found) {
		return ""
	}
	return found
}

// FederationName is the SNI by which an east-west gateway passes a connection on to its own controller's federation
// port.
func FederationName(trustDomain string) string { return "federation.clusters." + trustDomain }
