package resolve

import (
	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// dependencies makes what a namespace says of which services its sidecars get; nil when it says nothing.
func (b *builder) dependencies(o *objects.Object, n *corev1.Namespace) *model.Dependencies {
	mode, says := n.Labels[objects.DependenciesLabel]
	if !says {
		return nil
	}
	return &model.Dependencies{Namespace: n.Name, Observed: mode == objects.DependenciesObserved, Source: source(o)}
}
