package cli

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/control/objects"
)

// describeSections prints what a status of Gateway API says of listeners, parents and ancestors.
func (s *session) describeSections(status *objects.Status) error {
	if len(status.Addresses) > 0 {
		var all []string
		for _, a := range status.Addresses {
			all = append(all, a.Value)
		}
		fmt.Fprintf(s.out, "%-14s%s\n", "Addresses:", strings.Join(all, ", "))
	}
	if len(status.Listeners)+len(status.Parents)+len(status.Ancestors) == 0 {
		return nil
	}
	t := newTable("  OF", "TYPE", "STATUS", "REASON", "MESSAGE")
	rows := func(of string, conditions []metav1.Condition) {
		for _, c := range conditions {
			t.row("  "+of, c.Type, string(c.Status), c.Reason, strings.ReplaceAll(c.Message, "\n", "; "))
		}
	}
	for _, l := range status.Listeners {
		rows(fmt.Sprintf("listener %s (%d routes)", l.Name, l.AttachedRoutes), l.Conditions)
	}
	for _, p := range status.Parents {
		rows("parent "+parentName(p.ParentRef), p.Conditions)
	}
	for _, a := range status.Ancestors {
		rows("ancestor "+parentName(a.AncestorRef), a.Conditions)
	}
	fmt.Fprintln(s.out, "Parts:")
	return t.print(s.out)
}

func parentName(p gatewayv1.ParentReference) string {
	name := string(p.Name)
	if p.Namespace != nil {
		name = string(*p.Namespace) + "/" + name
	}
	if p.SectionName != nil {
		name += " " + string(*p.SectionName)
	}
	if p.Port != nil {
		name += fmt.Sprintf(" port %d", *p.Port)
	}
	return name
}
