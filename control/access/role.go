// Package access says who calls a cluster's API and what they may do: callers are known by the credentials of the socket's
// peer, by a token or by a client certificate, and have one of three fixed roles, in some namespaces or in all.
package access

import (
	"fmt"
	"slices"
	"strings"
)

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

// Grants are the roles of one caller, sorted by namespace, with one for each. Lists of replicas ask them for every entry.
type Grants []Grant

// In is the role in a namespace, or [Everywhere].
func (g Grants) In(namespace string) Role {
	return max(g.at(namespace), g.at(Everywhere))
}

func (g Grants) at(namespace string) Role {
	i, found := slices.BinarySearchFunc(g, namespace, func(one Grant, namespace string) int { return strings.Compare(one.Namespace, namespace) })
	if !found {
		return None
	}
	return g[i].Role
}

// Most is the highest role that the caller has anywhere.
func (g Grants) Most() Role {
	best := None
	for _, one := range g {
		best = max(best, one.Role)
	}
	return best
}

// maxListed bounds the roles that a message lists: refusals are answered and recorded as often as somebody asks.
const maxListed = 10

// String lists the roles, for messages, the first ten of them.
func (g Grants) String() string {
	if len(g) == 0 {
		return "no role"
	}
	var listed []string
	for _, one := range g[:min(len(g), maxListed)] {
		listed = append(listed, one.Role.String()+" "+where(one.Namespace))
	}
	text := strings.Join(listed, ", ")
	if more := len(g) - len(listed); more > 0 {
		text += fmt.Sprintf(" and in %d more namespaces", more)
	}
	return text
}

func where(namespace string) string {
	if namespace == Everywhere {
		return "in all namespaces"
	}
	return fmt.Sprintf("in namespace %q", namespace)
}
