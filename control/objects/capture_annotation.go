package objects

import (
	"fmt"

	"heddle.io/heddle/control/cluster"
)

// AnnotationCapture of a Workload says how its traffic is brought to its proxies, ebpf or nftables; without it, as the cluster's is.
const AnnotationCapture = "heddle.io/capture"

// captureAnnotation checks a workload's annotation.
func (c *checker) captureAnnotation(annotations map[string]string) {
	switch text, ok := annotations[AnnotationCapture]; {
	case !ok, text == cluster.CaptureEBPF, text == cluster.CaptureNFTables:
	default:
		c.fail(joinKey("metadata.annotations", AnnotationCapture), fmt.Sprintf("%q is no way of capture", text), "write ebpf or nftables, or leave it out")
	}
}
