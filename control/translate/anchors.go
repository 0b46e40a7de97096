package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"heddle.io/heddle/control/model"
)

// Which authorities clients accept servers of: the intermediates of the clusters that a service lives in, and no others. All
// services that live in the same clusters share one secret, so that a change of one cluster's intermediates is a change of the
// secrets that have them, and of nothing else.

// anchorSet are the clusters whose intermediates are anchors together.
type anchorSet struct {
	// name of the secret.
	name string
	// clusters, sorted.
	clusters []string
}

// maxAnchorNames is how long the names of clusters may be together, to be legible in a secret's name.
const maxAnchorNames = 128

func newAnchorSet(clusters []string) anchorSet {
	text := strings.Join(clusters, "~")
	if len(text) > maxAnchorNames {
		sum := sha256.Sum256([]byte(text))
		text = hex.EncodeToString(sum[:16])
	}
	return anchorSet{name: "anchors~" + text, clusters: clusters}
}

func (s anchorSet) none() bool { return s.name == "" }

// has says whether one of these is in the set.
func (s anchorSet) has(changed []*model.Anchors) bool {
	return slices.ContainsFunc(changed, func(a *model.Anchors) bool { return slices.Contains(s.clusters, a.Cluster) })
}

// anchorsFor is the set of a service. There is none where a cluster of an earlier version is among them, which does not
// announce its intermediates: then the root is the anchor, and the names alone tell clusters apart.
func (g *generator) anchorsFor(s *model.Service) anchorSet {
	var clusters []string
	for _, home := range s.Homes(g.mesh.Settings.Cluster) {
		if g.mesh.AnchorsOf(home.Cluster) == nil {
			return anchorSet{}
		}
		clusters = append(clusters, home.Cluster)
	}
	if len(clusters) == 0 {
		return anchorSet{}
	}
	slices.Sort(clusters)
	return newAnchorSet(slices.Compact(clusters))
}

// anchorsNamed is the set that a service's cluster names; none without the mesh's TLS.
func (g *generator) anchorsNamed(c *clusterv3.Cluster, s *model.Service, t *model.ClientTLS) anchorSet {
	if !meshTLS(t) || len(c.TransportSocketMatches) == 0 && c.TransportSocket == nil {
		return anchorSet{}
	}
	return g.anchorsFor(s)
}

// anchorSecret is the secret of a set as it is now.
func (g *generator) anchorSecret(s anchorSet) *tlsv3.Secret {
	inputs := make([]any, 0, len(s.clusters))
	for _, name := range s.clusters {
		inputs = append(inputs, g.mesh.AnchorsOf(name))
	}
	return memo(g, g.cache.anchors, s.name, inputs, func() *tlsv3.Secret {
		var text strings.Builder
		for _, name := range s.clusters {
			if a := g.mesh.AnchorsOf(name); a != nil {
				text.WriteString(a.Certificates)
			}
		}
		return &tlsv3.Secret{Name: s.name, Type: &tlsv3.Secret_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: bytesSource([]byte(text.String()))},
		}}
	})
}

// anchorsAppear says whether a change makes a cluster one that announces its intermediates, or one that does not: then the
// services that live there have another set.
func anchorsAppear(d *model.Difference) bool {
	return slices.ContainsFunc(d.Anchors, func(p model.Pair[model.Anchors]) bool { return p.Before == nil || p.After == nil })
}

// settleAnchors notes what becomes of the secrets that services' clusters name when some services' shares are made anew, and
// when the intermediates of these clusters changed.
func (s *shares) settleAnchors(g *generator, made map[string]*share, changed []*model.Anchors, delta *Delta) {
	concerned := map[string]bool{}
	for host, now := range made {
		if old := s.by[host]; old != nil {
			for _, p := range old.clusters {
				if !p.anchors.none() {
					concerned[p.anchors.name] = true
					s.countAnchors(p.anchors, -1)
				}
			}
		}
		if now == nil {
			continue
		}
		for _, p := range now.clusters {
			if p.anchors.none() {
				continue
			}
			concerned[p.anchors.name] = true
			s.countAnchors(p.anchors, 1)
		}
	}
	for name, a := range s.anchors {
		if a.set.has(changed) {
			concerned[name] = true
		}
	}
	for name := range concerned {
		a := s.anchors[name]
		if a.count == 0 {
			delete(s.anchors, name)
			if a.secret != nil {
				delta.Secrets = append(delta.Secrets, name)
			}
			continue
		}
		if now := g.anchorSecret(a.set); now != a.secret {
			a.secret = now
			s.anchors[name] = a
			delta.Set.Secrets = append(delta.Set.Secrets, now)
		}
	}
}

// countAnchors notes that so many more clusters name a set.
func (s *shares) countAnchors(set anchorSet, by int) {
	a := s.anchors[set.name]
	a.set = set
	a.count += by
	s.anchors[set.name] = a
}

// anchored is a secret of a client's, with how many of its clusters name it.
type anchored struct {
	set    anchorSet
	secret *tlsv3.Secret
	count  int
}
