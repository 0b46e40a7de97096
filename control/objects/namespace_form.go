package objects

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// DependenciesLabel of a namespace says which services its sidecars get: those that their workload was seen to use, the others
// being learned on demand, or all. Default what `heddle up --dependencies` says, which is all by default.
const DependenciesLabel = "heddle.io/dependencies"

// Values of [DependenciesLabel].
const (
	DependenciesObserved = "observed"
	DependenciesAll      = "all"
)

func (c *checker) namespace(n *corev1.Namespace) {
	switch mode, says := n.Labels[DependenciesLabel]; {
	case !says, mode == DependenciesObserved, mode == DependenciesAll:
	default:
		c.fail("metadata.labels["+DependenciesLabel+"]", fmt.Sprintf("%q is neither %s nor %s", mode, DependenciesObserved, DependenciesAll),
			"use one of them, or remove the label to have what the cluster has")
	}
}
