package xds

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// keepVersions gives each type a version made of its content. A state-of-the-world proxy is then sent a type again only
// when something of that type changed, after a restart of the controller too. The incremental protocol compares the
// resources one by one, by content as well.
func keepVersions(snapshot *cache.Snapshot) error {
	if err := snapshot.ConstructVersionMap(); err != nil {
		return err
	}
	remindOfEndpoints(snapshot)
	for _, t := range typeNames {
		versions := snapshot.GetVersionMap(t.url)
		digest := sha256.New()
		for _, name := range slices.Sorted(maps.Keys(versions)) {
			digest.Write([]byte(name + "\x00" + versions[name] + "\x00"))
		}
		snapshot.Resources[cache.GetResponseType(t.url)].Version = hex.EncodeToString(digest.Sum(nil)[:8])
	}
	return nil
}

// remindOfEndpoints makes a cluster's endpoints a new version whenever the cluster is. Envoy takes a changed cluster into
// use only when it has heard the cluster's endpoints after it, and over the incremental protocol it does not ask again
// for what it has: without this, the change would wait for ever.
func remindOfEndpoints(snapshot *cache.Snapshot) {
	clusters, endpoints := snapshot.GetVersionMap(resource.ClusterType), snapshot.GetVersionMap(resource.EndpointType)
	for name, r := range snapshot.GetResources(resource.ClusterType) {
		assignment := name
		if c, ok := r.(*clusterv3.Cluster); ok && c.GetEdsClusterConfig().GetServiceName() != "" {
			assignment = c.GetEdsClusterConfig().GetServiceName()
		}
		if version, known := endpoints[assignment]; known {
			endpoints[assignment] = version + "-" + clusters[name]
		}
	}
}
