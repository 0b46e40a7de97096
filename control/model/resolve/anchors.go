package resolve

import (
	"cmp"
	"slices"
	"strings"

	"heddle.io/heddle/control/model"
)

// anchors are those of all clusters that announce some, sorted by cluster; what is as before is the same pointer.
func (m *Model) anchors(before []*model.Anchors) []*model.Anchors {
	var out []*model.Anchors
	add := func(cluster string, certificates []string) {
		if len(certificates) == 0 {
			return
		}
		now := &model.Anchors{Cluster: cluster, Certificates: strings.Join(certificates, "")}
		if i := slices.IndexFunc(before, func(a *model.Anchors) bool { return *a == *now }); i >= 0 {
			now = before[i]
		}
		out = append(out, now)
	}
	add(m.settings.Cluster, m.ownAnchors)
	for _, p := range m.peers {
		add(p.Cluster, p.Anchors)
	}
	slices.SortFunc(out, func(x, y *model.Anchors) int { return cmp.Compare(x.Cluster, y.Cluster) })
	if slices.Equal(out, before) {
		return before
	}
	return out
}
