package scenarios

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// world is peers.yaml: what a cluster knows besides its own objects and replicas.
type world struct {
	// Cluster is the own cluster's name. Default cluster1.
	Cluster string `json:"cluster"`
	// Family of its addresses. Default ipv4.
	Family string `json:"family"`
	// Federation is where its controller listens for others.
	Federation netip.AddrPort `json:"federation"`
	// NotReady are replicas, as namespace/replica, that may not get traffic.
	NotReady []string `json:"notReady"`
	// Peers are the other clusters.
	Peers []registry.Peer `json:"peers"`
}

// readWorld reads peers.yaml; a scenario without has no other clusters.
func readWorld(t *testing.T, name string) world {
	t.Helper()
	w := world{Cluster: "cluster1"}
	text, err := os.ReadFile(filepath.Join(name, "peers.yaml"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &w); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w world) settings(t *testing.T) model.Settings {
	t.Helper()
	family, err := cluster.ParseFamily(w.Family)
	if err != nil {
		t.Fatal(err)
	}
	settings := model.SettingsFor(w.Cluster, family)
	settings.Federation = w.Federation
	return settings
}

// addresses gives the n-th host that needs one the address n of the range of globals.
func addresses(settings model.Settings, objs []*objects.Object, peers []registry.Peer) map[string]netip.Addr {
	out := map[string]netip.Addr{}
	next := settings.Globals.Addr()
	for _, host := range resolve.GlobalHosts(settings, objs, peers) {
		next = next.Next()
		out[host] = next
	}
	return out
}
