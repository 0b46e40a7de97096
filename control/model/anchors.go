package model

import (
	"cmp"
	"slices"
)

// Anchors are the intermediates of a cluster, by which clients know what it issued.
type Anchors struct {
	Cluster string `json:"cluster"`
	// Certificates, PEM.
	Certificates string `json:"certificates"`
}

// AnchorsOf a cluster; nil for one that announces none.
func (m *Mesh) AnchorsOf(cluster string) *Anchors {
	i, known := slices.BinarySearchFunc(m.Anchors, cluster, func(a *Anchors, name string) int { return cmp.Compare(a.Cluster, name) })
	if !known {
		return nil
	}
	return m.Anchors[i]
}

// Anchored are the names of the clusters that announce their intermediates.
func (m *Mesh) Anchored() []string {
	names := make([]string, 0, len(m.Anchors))
	for _, a := range m.Anchors {
		names = append(names, a.Cluster)
	}
	return names
}
