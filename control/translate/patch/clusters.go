package patch

import (
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"heddle.io/heddle/control/envoyapi"
	"heddle.io/heddle/control/model"
)

// Cluster makes the changes of a cluster.
func cluster(patches []*Patch, c *clusterv3.Cluster) *Result[*clusterv3.Cluster] {
	return run(c, (*clusterv3.Cluster).GetName, patches, func(a *attempt, original *clusterv3.Cluster) (*clusterv3.Cluster, bool, error) {
		out := original
		for p := range a.of("CLUSTER") {
			if !changesCluster(p, original) {
				continue
			}
			if p.Operation == "REMOVE" {
				a.Outcome = Outcome{}
				a.note(p)
				return nil, false, nil
			}
			if out == original {
				out = clone[*clusterv3.Cluster](&Patch{value: original})
			}
			if err := mergeCluster(a, p, out); err != nil {
				return nil, false, err
			}
		}
		return out, true, nil
	})
}

// changesCluster says whether a patch, which may be of anything, has to do with a cluster that is there.
func changesCluster(p *Patch, c *clusterv3.Cluster) bool {
	return p.ApplyTo == "CLUSTER" && (p.merges() || p.Operation == "REMOVE") && matchesCluster(p.Cluster, c)
}

// mergeCluster merges a patch. Where a cluster chooses among transport sockets, that of the patch is merged into the one of its
// name: it may not have both.
func mergeCluster(a *attempt, p *Patch, into *clusterv3.Cluster) error {
	value, ok := p.value.(*clusterv3.Cluster)
	if !ok || value.GetTransportSocket() == nil || len(into.GetTransportSocketMatches()) == 0 {
		a.note(p)
		return p.mergeInto(into)
	}
	for _, m := range into.TransportSocketMatches {
		if m.GetTransportSocket().GetName() == value.TransportSocket.Name {
			if err := envoyapi.Merge(m.TransportSocket, value.TransportSocket, p.Operation == "MERGE_AND_REPLACE_LIST"); err != nil {
				return err
			}
			a.note(p)
			break
		}
	}
	rest := clone[*clusterv3.Cluster](p)
	rest.TransportSocket = nil
	if proto.Equal(rest, &clusterv3.Cluster{}) {
		return nil
	}
	a.note(p)
	return envoyapi.Merge(into, rest, p.Operation == "MERGE_AND_REPLACE_LIST")
}

// matchesCluster goes by the parts of the name, direction|port|subset|host; those of servers have no host in it, but the
// service in their metadata.
func matchesCluster(m *model.PatchCluster, c *clusterv3.Cluster) bool {
	switch {
	case m == nil:
		return true
	case m.Name != "":
		return m.Name == c.GetName()
	}
	direction, rest, _ := strings.Cut(c.GetName(), "|")
	port, rest, _ := strings.Cut(rest, "|")
	subset, host, is := strings.Cut(rest, "|")
	switch {
	case !is || strings.Contains(host, "|"):
		port, subset, host = "", "", ""
	case direction == "inbound":
		host = servedHost(c.GetMetadata())
	}
	return (m.Subset == "" || m.Subset == subset) && (m.Service == "" || m.Service == host) &&
		(m.Port == 0 || strconv.FormatUint(uint64(m.Port), 10) == port)
}

func servedHost(m *corev3.Metadata) string {
	for _, s := range m.GetFilterMetadata()["istio"].GetFields()["services"].GetListValue().GetValues() {
		return s.GetStructValue().GetFields()["host"].GetStringValue()
	}
	return ""
}
