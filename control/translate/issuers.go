package translate

import (
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// Whose certificates proxies accept, on either side of a connection, and what they know a certificate by: the DNS names
// of [cluster.Issuer], and nothing else in it.

// issuers are the authorities of the clusters of the mesh, and the Cluster objects that say so become sources.
func (g *generator) issuers() []cluster.Issuer {
	all := g.mesh.Settings.Issuers
	for _, i := range all {
		g.fromCluster(i.Cluster)
	}
	return all
}

func (g *generator) fromCluster(name string) {
	g.from(model.Source{Key: objects.Key{Group: objects.Cluster.Group, Kind: objects.Cluster.Kind, Name: name}})
}

// callers match certificates of the mesh, whoever they are of.
func (g *generator) callers() []*tlsv3.SubjectAltNameMatcher {
	var out []*tlsv3.SubjectAltNameMatcher
	for _, i := range g.issuers() {
		out = append(out, dnsMatcher(exactly(i.Name(g.mesh.Settings.TrustDomain))))
	}
	return out
}

// nobody is a name that no certificate has (RFC 2606, section 2): without any, matchers would accept every certificate.
const nobody = "nobody.invalid"

// servers match certificates of a service: of the accounts that may answer for it in a cluster that it lives in, issued
// in that cluster. subjects, if there are any, are identities that a policy demands instead, in any of those clusters.
func (g *generator) servers(s *model.Service, subjects []string) []*tlsv3.SubjectAltNameMatcher {
	settings := g.mesh.Settings
	var accounts, namespaces []*tlsv3.SubjectAltNameMatcher
	for _, home := range s.Homes(settings.Cluster) {
		identities := home.Identities
		if len(subjects) > 0 {
			identities = subjects
		}
		g.fromCluster(home.Cluster)
		for _, issuer := range settings.IssuersOf(home.Cluster) {
			for _, id := range identities {
				if namespace, account, ok := cluster.AccountOf(settings.TrustDomain, id); ok {
					accounts = append(accounts, dnsMatcher(exactly(issuer.Account(settings.TrustDomain, namespace, account))))
				}
			}
			namespaces = append(namespaces, dnsMatcher(ending(issuer.Namespace(settings.TrustDomain, s.Namespace))))
		}
	}
	switch {
	case len(accounts) > 0:
		return accounts
	case len(subjects) == 0 && len(namespaces) > 0:
		// No workload is known: whoever answers must at least be of the service's namespace.
		return namespaces
	}
	// A policy demands names that nobody in the mesh has, or no cluster has the service any more.
	return []*tlsv3.SubjectAltNameMatcher{dnsMatcher(exactly(nobody))}
}
