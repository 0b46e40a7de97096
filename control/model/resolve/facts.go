package resolve

import "heddle.io/heddle/control/objects"

// fact is something that is looked up while an object is worked out.
type fact struct {
	kind factKind
	// a, b and c say which: a host, a namespace, a label.
	a, b, c string
}

type factKind uint8

const (
	// factService is the service of a host, factName what a name stands for.
	factService factKind = iota
	factName
	// factWorkload and factReplica are who has a label in a namespace, "" for any label and for any namespace.
	factWorkload
	factReplica
	factNamespace
	factAccount
	factSecret
	// factAuthorizer is a provider of the mesh's configuration.
	factAuthorizer
	factGateway
	// factClass is a GatewayClass, factGrants the ReferenceGrants of a namespace.
	factClass
	factGrants
	factConfigMap
	// factDestinations are the destination policies for a host, "" for those for patterns.
	factDestinations
	factClusters
	// factRemotes are the services of other clusters.
	factRemotes
	// factGroup is a WorkloadGroup, factAddress the virtual address of a host.
	factGroup
	factAddress
)

// touch has the objects worked out again that a fact was looked up for.
func (m *Model) touch(f fact) {
	for key := range m.readers[f] {
		m.dirty[stratumOf(key)][key] = struct{}{}
	}
}

func (m *Model) touchLabels(kind factKind, namespace string, labels map[string]string) {
	for _, ns := range []string{namespace, ""} {
		m.touch(fact{kind: kind, a: ns})
		for k, v := range labels {
			m.touch(fact{kind: kind, a: ns, b: k, c: v})
		}
	}
}

func (m *Model) setReads(key objects.Key, e *keptObject, reads []fact) {
	for _, f := range e.reads {
		if of := m.readers[f]; of != nil {
			if delete(of, key); len(of) == 0 {
				delete(m.readers, f)
			}
		}
	}
	e.reads = reads
	for _, f := range reads {
		if m.readers[f] == nil {
			m.readers[f] = map[objects.Key]struct{}{}
		}
		m.readers[f][key] = struct{}{}
	}
}
