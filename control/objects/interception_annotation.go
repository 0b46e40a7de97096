package objects

import (
	"errors"
	"fmt"
	"slices"

	mesh "istio.io/api/mesh/v1alpha1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/interception"
)

// WorkloadInterception says what of a workload's traffic is captured. A workload that was admitted has no errors; with one, everything is.
func WorkloadInterception(w *v1alpha1.Workload) (interception.Rules, error) {
	rules, problems := interception.Parse(w.Annotations, proxyMetadata(w.Annotations))
	var errs []error
	for _, p := range problems {
		errs = append(errs, p)
	}
	return rules, errors.Join(errs...)
}

// LeftOut is what of a workload's traffic is not captured, by where the workload says so.
func LeftOut(w *v1alpha1.Workload) map[string]string {
	out := map[string]string{}
	add := func(path string, rules interception.Rules, problems []interception.Problem) {
		switch {
		case len(problems) > 0:
			out[path] = problems[0].Error()
		case !rules.CaptureAll():
			out[path] = rules.String() + " is not captured"
		}
	}
	rules, problems := interception.Parse(w.Annotations, nil)
	add("metadata.annotations["+interception.Prefix+"…]", rules, problems)
	rules, problems = interception.Parse(nil, proxyMetadata(w.Annotations))
	add("metadata.annotations["+AnnotationProxyConfig+"].proxyMetadata", rules, problems)
	return out
}

// proxyMetadata are the variables of a workload's annotation for its proxy, none where it cannot be read.
func proxyMetadata(annotations map[string]string) map[string]string {
	config := &mesh.ProxyConfig{}
	if readMesh(annotations[AnnotationProxyConfig], config) != nil {
		return nil
	}
	return config.GetProxyMetadata()
}

// interceptionAnnotations checks a workload's annotations for what is captured, and the variables of its proxyMetadata, of which there are no others.
func (c *checker) interceptionAnnotations(annotations map[string]string) {
	known := []string{interception.IncludeGroups, interception.ExcludeGroups}
	variables := proxyMetadata(annotations)
	at := joinKey("metadata.annotations", AnnotationProxyConfig) + ".proxyMetadata"
	for name := range variables {
		if !slices.Contains(known, name) {
			c.fail(joinKey(at, name), "is not supported", fmt.Sprintf("remove it; of proxyMetadata %s and %s are read", known[0], known[1]))
		}
	}
	_, problems := interception.Parse(annotations, variables)
	for _, p := range problems {
		path := joinKey("metadata.annotations", p.Name)
		if slices.Contains(known, p.Name) {
			path = joinKey(at, p.Name)
		}
		c.fail(path, p.What, p.Remedy)
	}
}
