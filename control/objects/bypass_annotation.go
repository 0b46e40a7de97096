package objects

import "fmt"

// AnnotationTCPBypass of a Workload says what of its traffic bypasses TCP, in a cluster that was started with the bypass.
const AnnotationTCPBypass = "heddle.io/tcp-bypass"

// Values of [AnnotationTCPBypass].
const (
	// BypassSend is what its application sends its proxy, and what proxies send each other: as without the annotation.
	BypassSend = "send"
	// BypassBoth is also what its proxy sends its application, which must not wait in ways that do not know of it.
	BypassBoth = "both"
	// BypassOff is nothing.
	BypassOff = "off"
)

// bypassAnnotation checks a workload's annotation.
func (c *checker) bypassAnnotation(annotations map[string]string) {
	switch text, ok := annotations[AnnotationTCPBypass]; {
	case !ok, text == BypassSend, text == BypassBoth, text == BypassOff:
	default:
		c.fail(joinKey("metadata.annotations", AnnotationTCPBypass), fmt.Sprintf("%q is no mode of the bypass", text), "write send, both or off, or leave it out")
	}
}
