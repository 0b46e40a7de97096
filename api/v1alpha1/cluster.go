package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Cluster is one cluster of the mesh. It is cluster-scoped, belongs to the primary and is replicated to every member.
// The primary makes it when a cluster joins; deleting it takes the cluster out of the mesh.
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterSpec `json:"spec"`
}

// ClusterSpec is what the mesh knows of a cluster.
type ClusterSpec struct {
	// Primary marks the cluster that issues the others' intermediates and keeps the mesh's objects.
	Primary bool `json:"primary,omitempty"`
	// Key is the SHA-256 of the public key (SubjectPublicKeyInfo, hexadecimal) that the cluster's intermediate was
	// issued for when it joined. A cluster that joins again with this key is repaired, with another one refused.
	Key string `json:"key,omitempty"`
	// Joined is when the cluster joined.
	Joined metav1.Time `json:"joined,omitzero"`
}

// DeepCopyObject copies the cluster.
func (c *Cluster) DeepCopyObject() runtime.Object { return c.DeepCopy() }

// DeepCopy copies the cluster.
func (c *Cluster) DeepCopy() *Cluster {
	if c == nil {
		return nil
	}
	out := &Cluster{TypeMeta: c.TypeMeta, Spec: c.Spec}
	c.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Joined = *c.Spec.Joined.DeepCopy()
	return out
}
