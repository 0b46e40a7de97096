package objects

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"heddle.io/heddle/api/v1alpha1"
)

// accessRoles are the roles that a binding may give, see package access.
var accessRoles = []string{"viewer", "editor", "admin"}

// Bounds of a binding, which is read with every request of whom it is about.
const (
	maxAccessNamespaces = 256
	maxAccessSubjects   = 256
	maxSubjectName      = 256
)

func (c *checker) accessBinding(b *v1alpha1.AccessBinding) {
	if !slices.Contains(accessRoles, b.Spec.Role) {
		remedy := "use one of " + strings.Join(accessRoles, ", ")
		if near := Nearest(b.Spec.Role, accessRoles); near != "" {
			remedy = fmt.Sprintf("did you mean %q?", near)
		}
		c.fail("spec.role", fmt.Sprintf("%q is not a role", b.Spec.Role), remedy)
	}
	if len(b.Spec.Namespaces) == 0 {
		c.fail("spec.namespaces", "missing", `name at least one; ["*"] means all`)
	}
	c.most("spec.namespaces", len(b.Spec.Namespaces), maxAccessNamespaces)
	for i, namespace := range b.Spec.Namespaces {
		at := fmt.Sprintf("spec.namespaces[%d]", i)
		switch {
		case namespace != "*":
			c.dnsLabel(at, namespace)
		case len(b.Spec.Namespaces) > 1:
			c.fail(at, `"*" stands beside others`, `"*" means all namespaces: leave the others out`)
		}
	}
	if len(b.Spec.Subjects) == 0 {
		c.fail("spec.subjects", "missing", "name at least one user, group or service account")
	}
	c.most("spec.subjects", len(b.Spec.Subjects), maxAccessSubjects)
	for i, s := range b.Spec.Subjects {
		c.accessSubject(fmt.Sprintf("spec.subjects[%d]", i), s)
	}
}

func (c *checker) accessSubject(at string, s v1alpha1.AccessSubject) {
	account := s.Kind == v1alpha1.SubjectServiceAccount
	switch s.Kind {
	case v1alpha1.SubjectUser, v1alpha1.SubjectGroup, v1alpha1.SubjectServiceAccount:
	default:
		c.fail(at+".kind", fmt.Sprintf("%q is not a kind of subject", s.Kind), "use User, Group or ServiceAccount")
	}
	switch {
	case s.Name == "":
		c.fail(at+".name", "missing", "name the user, group or service account")
	case len(s.Name) > maxSubjectName || strings.TrimSpace(s.Name) != s.Name || strings.ContainsFunc(s.Name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		c.fail(at+".name", "is not a name", fmt.Sprintf("use at most %d characters without white space around them", maxSubjectName))
	case account && len(validation.IsDNS1123Subdomain(s.Name)) > 0:
		c.fail(at+".name", fmt.Sprintf("%q is not the name of a service account", s.Name), "use lower-case letters, digits, '-' and '.'")
	case !account && slices.Contains(everybodys, s.Name):
		// Every workload without a user of its own would have the role.
		c.fail(at+".name", fmt.Sprintf("%q is who workloads run as", s.Name), "name a user or group of people, or a ServiceAccount")
	}
	switch {
	case account:
		c.dnsLabel(at+".namespace", s.Namespace)
	case s.Namespace != "":
		c.fail(at+".namespace", "is for service accounts only", "leave it out")
	}
}

// everybodys are the users and groups that workloads run as by default.
var everybodys = []string{"nobody", "nogroup", "65534"}
