package translate

import (
	"fmt"
	"strings"

	"heddle.io/heddle/control/model"
)

// domains are the names by which clients of the node's namespace call a service, with and without the port.
func (g *generator) domains(s *model.Service, port uint16) []string {
	names := []string{s.Host}
	if s.External == nil {
		names = g.shortNames(names, s.Name, s.Namespace)
	}
	for _, a := range s.Aliases {
		if !a.Visible.In(g.node.Namespace) {
			continue
		}
		names = append(names, a.Host)
		if rest, ok := strings.CutSuffix(a.Host, ".svc."+g.mesh.Settings.Domain); ok {
			name, namespace, _ := strings.Cut(rest, ".")
			names = g.shortNames(names, name, namespace)
		}
	}
	if !s.Address.IsValid() {
		return withPort(names, port)
	}
	if s.Address.Is6() {
		// As a literal stands in an authority (RFC 3986, section 3.2.2).
		return withPort(append(names, "["+s.Address.String()+"]"), port)
	}
	return withPort(append(names, s.Address.String()), port)
}

// shortNames adds the names that stand for the full one of a service in a namespace.
func (g *generator) shortNames(names []string, name, namespace string) []string {
	if namespace == g.node.Namespace {
		names = append(names, name)
	}
	return append(names, name+"."+namespace+".svc", name+"."+namespace)
}

func withPort(names []string, port uint16) []string {
	out := make([]string, 0, 2*len(names))
	for _, n := range names {
		out = append(out, n)
		if n != "*" {
			out = append(out, fmt.Sprintf("%s:%d", n, port))
		}
	}
	return out
}
