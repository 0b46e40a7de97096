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
