// Package access says who calls a cluster's API and what they may do: callers are known by the credentials of the socket's
// peer, by a token or by a client certificate, and have one of three fixed roles, in some namespaces or in all.
package access

import "fmt"

// Role is what a caller may do. Each may do what those before it may.
type Role int

// The roles. What each may do is decided in package server, route by route.
const (
	// None is the role of everybody who was given none.
	None Role = iota
	// Viewer reads everything but secrets and the values of workloads' environment.
	Viewer
	// Editor also writes objects, and acts on what runs; it starts nothing privileged where that is not allowed.
	Editor
	// Admin also makes tokens; for all namespaces, everything: who has which role, privileged namespaces, the mesh.
	Admin
)

var roleNames = [...]string{None: "none", Viewer: "viewer", Editor: "editor", Admin: "admin"}

// String is the role's name.
func (r Role) String() string { return roleNames[r] }

// ParseRole reads a role's name: viewer, editor or admin.
func ParseRole(name string) (Role, error) {
	for r := Viewer; r <= Admin; r++ {
		if r.String() == name {
			return r, nil
		}
	}
	return None, fmt.Errorf("%q is not a role: use viewer, editor or admin", name)
}

// Everywhere stands for all namespaces, and for what is in none.
const Everywhere = "*"

// Grant is a role in a namespace, or [Everywhere].
type Grant struct {
	Role      Role
	Namespace string
}

// Grants are the roles of one caller.
type Grants []Grant

// In is the role in a namespace, or [Everywhere].
func (g Grants) In(namespace string) Role {
	best := None
	for _, one := range g {
		if one.Namespace == namespace || one.Namespace == Everywhere {
			best = max(best, one.Role)
		}
	}
	return best
}

// Most is the highest role that the caller has anywhere.
func (g Grants) Most() Role {
	best := None
	for _, one := range g {
		best = max(best, one.Role)
	}
	return best
}

// String lists the roles, for messages.
func (g Grants) String() string {
	text := ""
	for _, one := range g {
		if text != "" {
			text += ", "
		}
		text += one.Role.String() + " " + where(one.Namespace)
	}
	if text == "" {
		return "no role"
	}
	return text
}

func where(namespace string) string {
	if namespace == Everywhere {
		return "in all namespaces"
	}
	return fmt.Sprintf("in namespace %q", namespace)
}
