// Package v1alpha1 holds Heddle's own kinds, group heddle.io, where neither Kubernetes nor Istio has one.
package v1alpha1

// Group is the API group of Heddle's own kinds.
const Group = "heddle.io"

// Version is the version of this package's kinds.
const Version = "v1alpha1"
