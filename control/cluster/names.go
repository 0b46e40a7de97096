package cluster

// CertificateName is <cluster>.clusters.<trust domain>, under which the names of a cluster's certificates are: see
// [Issuer.Name].
func CertificateName(trustDomain, cluster string) string {
	return cluster + ".clusters." + trustDomain
}

// FederationName is the SNI by which an east-west gateway passes a connection on to its own controller's federation
// port.
func FederationName(trustDomain string) string { return "federation.clusters." + trustDomain }
