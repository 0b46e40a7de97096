package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// AccessBinding gives users of the API a role, in namespaces or everywhere. It is what a RoleBinding or
// ClusterRoleBinding to a fixed role is in Kubernetes. It is cluster-scoped and belongs to the cluster that stores it; only
// an admin of all namespaces may write one.
type AccessBinding struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec AccessBindingSpec `json:"spec"`
}

// AccessBindingSpec says who may do what, and where.
type AccessBindingSpec struct {
	// Role is viewer, editor or admin; each may do what those before it may.
	Role string `json:"role"`
	// Namespaces that the role is for; "*" alone means all of them and what is in none.
	Namespaces []string `json:"namespaces"`
	// Subjects who get the role.
	Subjects []AccessSubject `json:"subjects"`
}

// AccessSubject is who calls the API.
type AccessSubject struct {
	// Kind is User, Group or ServiceAccount.
	Kind string `json:"kind"`
	// Name of the user: the account of this machine that opened the API's socket (a number is the account's id), or the
	// common name of a certificate of the API's client authority. Of the group: one of this machine that the account is in,
	// or an organization of the certificate. Of the service account: its name.
	Name string `json:"name"`
	// Namespace of the service account.
	Namespace string `json:"namespace,omitempty"`
}

// Kinds of an AccessSubject.
const (
	SubjectUser           = "User"
	SubjectGroup          = "Group"
	SubjectServiceAccount = "ServiceAccount"
)

// DeepCopyObject copies the binding.
func (b *AccessBinding) DeepCopyObject() runtime.Object { return b.DeepCopy() }

// DeepCopy copies the binding.
func (b *AccessBinding) DeepCopy() *AccessBinding {
	if b == nil {
		return nil
	}
	out := &AccessBinding{TypeMeta: b.TypeMeta, Spec: b.Spec}
	b.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Namespaces = slices.Clone(b.Spec.Namespaces)
	out.Spec.Subjects = slices.Clone(b.Spec.Subjects)
	return out
}
