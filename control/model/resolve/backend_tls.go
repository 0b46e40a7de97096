package resolve

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// backendTLS makes a policy for TLS with services, nil while there is nothing that it could be checked with or used for.
func (b *builder) backendTLS(o *objects.Object, p *gatewayv1.BackendTLSPolicy) *model.BackendTLS {
	v := p.Spec.Validation
	out := &model.BackendTLS{
		Namespace: o.GetNamespace(), Name: o.GetName(), Source: source(o),
		TLS: model.ClientTLS{Mode: model.TLSSimple, ServerName: string(v.Hostname), SubjectNames: []string{string(v.Hostname)}},
	}
	if len(v.SubjectAltNames) > 0 {
		// The names take the place of the host name, which is then no more than what is asked for.
		out.TLS.SubjectNames = nil
		for _, s := range v.SubjectAltNames {
			out.TLS.SubjectNames = append(out.TLS.SubjectNames, string(s.Hostname)+string(s.URI))
		}
	}
	var lost, invalid *Finding
	for i, t := range p.Spec.TargetRefs {
		target, problem := b.backendTarget(o, fmt.Sprintf("spec.targetRefs[%d]", i), &t)
		if problem != nil {
			b.report.missing(o.Key(), problem.Reason, problem.Path, problem.Problem, problem.Remedy)
			lost = cmpOr(lost, problem)
			continue
		}
		out.Targets = append(out.Targets, target)
	}
	for i, r := range v.CACertificateRefs {
		pem, problem := b.authorities(o, fmt.Sprintf("spec.validation.caCertificateRefs[%d]", i), &r)
		if problem != nil {
			b.report.missing(o.Key(), problem.Reason, problem.Path, problem.Problem, problem.Remedy)
			invalid = cmpOr(invalid, problem)
			continue
		}
		if out.TLS.Authorities == nil {
			// Those of one bundle are one text, however many policies name it.
			out.TLS.Authorities = slices.Clip(pem)
		} else {
			out.TLS.Authorities = append(out.TLS.Authorities, pem...)
		}
	}
	ok := len(v.CACertificateRefs) == 0 || len(out.TLS.Authorities) > 0
	accepted := lost
	if !ok {
		accepted = &Finding{Reason: "NoValidCACertificate", Path: "spec.validation.caCertificateRefs", Problem: "none can be used"}
	}
	for _, t := range p.Spec.TargetRefs {
		b.said.Ancestors = append(b.said.Ancestors, gatewayv1.PolicyAncestorStatus{
			AncestorRef:    gatewayv1.ParentReference{Group: &t.Group, Kind: &t.Kind, Name: t.Name, SectionName: t.SectionName},
			ControllerName: objects.GatewayController,
			Conditions: []metav1.Condition{
				said(o.GetGeneration(), string(gatewayv1.PolicyConditionAccepted), accepted, string(gatewayv1.PolicyReasonAccepted)),
				said(o.GetGeneration(), string(gatewayv1.BackendTLSPolicyConditionResolvedRefs), invalid, "ResolvedRefs"),
			},
		})
	}
	if len(out.Targets) == 0 {
		return nil
	}
	if !ok {
		// Nothing is trusted rather than everything: connections fail until there is an authority.
		out.TLS.Authorities = nil
		out.TLS.Untrusted = true
	}
	return out
}

func (b *builder) backendTarget(o *objects.Object, at string, t *gatewayv1.LocalPolicyTargetReferenceWithSectionName) (model.BackendTarget, *Finding) {
	out := model.BackendTarget{Host: string(t.Name) + "." + o.GetNamespace() + ".svc." + b.settings.Domain}
	s := b.serviceOf(out.Host)
	if s == nil {
		return out, &Finding{
			Reason: string(gatewayv1.PolicyReasonTargetNotFound), Path: at + ".name",
			Problem: fmt.Sprintf("there is no service %s", out.Host), Remedy: "apply the Service, or correct the name",
		}
	}
	if t.SectionName == nil {
		return out, nil
	}
	for _, p := range s.Ports {
		if p.Name == string(*t.SectionName) {
			out.Port = p.Number
			return out, nil
		}
	}
	return out, &Finding{
		Reason: string(gatewayv1.PolicyReasonTargetNotFound), Path: at + ".sectionName",
		Problem: fmt.Sprintf("%s has no port called %s", s.Host, *t.SectionName), Remedy: "name one of its ports, or leave it out for all",
	}
}

// authorities are the certificates of a ConfigMap or Secret, under ca.crt.
func (b *builder) authorities(o *objects.Object, at string, r *gatewayv1.LocalObjectReference) ([]byte, *Finding) {
	key := objects.Key{Kind: string(r.Kind), Namespace: o.GetNamespace(), Name: string(r.Name)}
	if key.Kind == objects.Secret.Kind {
		b.look(factSecret, key.Namespace, key.Name, "")
	} else {
		b.look(factConfigMap, key.Namespace, key.Name, "")
	}
	if e := b.m.entries[key]; e != nil && e.valid {
		if pem := b.m.authoritiesOf(e.object); pem != nil {
			return pem, nil
		}
	}
	return nil, &Finding{
		Reason: "InvalidCACertificateRef", Path: at, Problem: fmt.Sprintf("there is no %s %s/%s with certificates in ca.crt", key.Kind, key.Namespace, key.Name),
		Remedy: "apply it; until then connections to the targets fail",
	}
}
