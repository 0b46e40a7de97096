package objects

import (
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
)

// workloadEntryTreatments are what becomes of the fields of WorkloadEntry, Istio's kind for an endpoint that no agent of the mesh runs, such as a virtual machine.
var workloadEntryTreatments = map[string]fields{
	"istio.networking.v1alpha3.WorkloadEntry": {
		translated: []string{"address", "ports", "labels", "locality", "weight", "serviceAccount"},
		refused:    map[string]string{"network": "remove it; all endpoints must be reachable as they are, without a gateway between"},
	},
}

func (c *checker) workloadEntry(w *networkingv1.WorkloadEntry) {
	c.workloadEndpoint("spec", &w.Spec, false)
}
