package objects

import (
	networking "istio.io/api/networking/v1"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
)

// GroupAnnotation of a WorkloadEntry names the WorkloadGroup, of its namespace, whose template it is made of (Istio's
// annotation).
const GroupAnnotation = "istio.io/autoRegistrationGroup"

const noProbe = "remove it; nobody of the mesh runs at the endpoint who could probe it. Eject endpoints that fail by a DestinationRule with outlierDetection"

// workloadGroupTreatments are what becomes of the fields of WorkloadGroup, Istio's kind for what workload entries have in common.
var workloadGroupTreatments = map[string]fields{
	"istio.networking.v1alpha3.WorkloadGroup": {
		translated: []string{"metadata", "template"},
		refused:    map[string]string{"probe": noProbe},
	},
	"istio.networking.v1alpha3.WorkloadGroup.ObjectMeta": {
		translated: []string{"labels"},
		ignored:    map[string]string{"annotations": "entries are written by hand and have their own"},
	},
	"istio.networking.v1alpha3.ReadinessProbe": {refused: map[string]string{
		"initialDelaySeconds": noProbe, "timeoutSeconds": noProbe, "periodSeconds": noProbe, "successThreshold": noProbe,
		"failureThreshold": noProbe, "httpGet": noProbe, "tcpSocket": noProbe, "exec": noProbe, "grpc": noProbe,
	}},
	"istio.networking.v1alpha3.HTTPHealthCheckConfig": {refused: map[string]string{
		"path": noProbe, "port": noProbe, "host": noProbe, "scheme": noProbe, "httpHeaders": noProbe,
	}},
	"istio.networking.v1alpha3.HTTPHeader":            {refused: map[string]string{"name": noProbe, "value": noProbe}},
	"istio.networking.v1alpha3.TCPHealthCheckConfig":  {refused: map[string]string{"host": noProbe, "port": noProbe}},
	"istio.networking.v1alpha3.ExecHealthCheckConfig": {refused: map[string]string{"command": noProbe}},
	"istio.networking.v1alpha3.GrpcHealthCheckConfig": {refused: map[string]string{"port": noProbe, "service": noProbe}},
}

func (c *checker) workloadGroup(g *networkingv1.WorkloadGroup) {
	if g.Spec.Template == nil {
		c.fail("spec.template", "missing", "give what the group's entries have in common, for example {serviceAccount: billing}")
		return
	}
	c.labels("spec.metadata.labels", g.Spec.GetMetadata().GetLabels())
	if g.Spec.Template.Address != "" {
		c.fail("spec.template.address", "is of one entry alone", "remove it; each WorkloadEntry has its own")
		return
	}
	// Apart from the address, it is an entry like any other.
	entry := networking.WorkloadEntry{
		Address: "127.0.0.1", Ports: g.Spec.Template.Ports, Labels: g.Spec.Template.Labels, Locality: g.Spec.Template.Locality,
		Weight: g.Spec.Template.Weight, ServiceAccount: g.Spec.Template.ServiceAccount,
	}
	c.workloadEndpoint("spec.template", &entry, false)
}
