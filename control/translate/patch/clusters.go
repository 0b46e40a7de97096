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

// ofCluster are the patches that have to do with a cluster that is there.
func (p *part) ofCluster(c *clusterv3.Cluster) []*Patch {
	is := nameOf(c)
	return p.find([]word{{byName, is.name}, {byService, is.host}}, func(p *Patch) bool {
		return p.ApplyTo == "CLUSTER" && (p.merges() || p.Operation == "REMOVE") && is.matches(p.Cluster)
	})
}

// cluster makes the changes of a cluster.
func cluster(patches []*Patch, c *clusterv3.Cluster) *Result[*clusterv3.Cluster] {
	return run(c, (*clusterv3.Cluster).GetName, patches, func(a *attempt, original *clusterv3.Cluster) (*clusterv3.Cluster, bool, error) {
		out := original
		for _, p := range a.patches {
			if p.Operation == "REMOVE" {
				a.outcomes = outcomes{}
				a.note(p)
				return nil, false, nil
			}
			if out == original {
				out = proto.CloneOf(original)
			}
			if err := mergeCluster(a, p, out); err != nil {
				return nil, false, err
			}
		}
		return out, true, nil
	})
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

// clusterName is what clusters are matched by.
type clusterName struct {
	name, port, subset, host string
}

// nameOf takes the parts of the name, direction|port|subset|host; those of servers have no host in it, but the service in their
// metadata.
func nameOf(c *clusterv3.Cluster) clusterName {
	direction, rest, _ := strings.Cut(c.GetName(), "|")
	port, rest, _ := strings.Cut(rest, "|")
	subset, host, is := strings.Cut(rest, "|")
	switch {
	case !is || strings.Contains(host, "|"):
		return clusterName{name: c.GetName()}
	case direction == "inbound":
		host = servedHost(c.GetMetadata())
	}
	return clusterName{c.GetName(), port, subset, host}
}

func (c clusterName) matches(m *model.PatchCluster) bool {
	switch {
	case m == nil:
		return true
	case m.Name != "":
		return m.Name == c.name
	}
	return (m.Subset == "" || m.Subset == c.subset) && (m.Service == "" || m.Service == c.host) &&
		(m.Port == 0 || strconv.FormatUint(uint64(m.Port), 10) == c.port)
}

func servedHost(m *corev3.Metadata) string {
	for _, s := range m.GetFilterMetadata()["istio"].GetFields()["services"].GetListValue().GetValues() {
		return s.GetStructValue().GetFields()["host"].GetStringValue()
	}
	return ""
}
