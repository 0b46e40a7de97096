package federation

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/registry"
)

// State is what a cluster says of itself to the others.
type State struct {
	// Gateways are where others reach its east-west gateways.
	Gateways []netip.AddrPort  `json:"gateways,omitempty"`
	Locality registry.Locality `json:"locality,omitzero"`
	// Version of its program.
	Version string `json:"version,omitempty"`
	// Anchors are the intermediates (PEM) by which clients know its servers.
	Anchors []string `json:"anchors,omitempty"`
	// Services that it exports: at the primary all of them, at a member those that it may know.
	Services *registry.Exports `json:"services,omitempty"`
}

// Bounds of what is taken from another cluster.
const (
	maxGateways   = 16
	maxAnchors    = 8
	maxAnchor     = 4 << 10
	maxServices   = 10000
	maxPorts      = 64
	maxIdentities = 256
	maxGroups     = 256
	maxLabels     = 64
	maxText       = 1024
	// maxStateBytes is how large all parts of a state may be together.
	maxStateBytes = 8 << 20
)

var (
	labelPattern    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	protocolPattern = regexp.MustCompile(`^(TCP|HTTP|HTTP2)$`)
)

func (s State) message() *pb.State {
	m := &pb.State{
		Locality: &pb.Locality{Region: s.Locality.Region, Zone: s.Locality.Zone, SubZone: s.Locality.SubZone},
		Version:  s.Version, Services: exportMessages(s.Services.Sorted()), Anchors: s.Anchors,
	}
	for _, g := range s.Gateways {
		m.Gateways = append(m.Gateways, g.String())
	}
	return m
}

func exportMessages(exports []*registry.Export) []*pb.Export {
	out := make([]*pb.Export, 0, len(exports))
	for _, e := range exports {
		m := &pb.Export{Namespace: e.Namespace, Name: e.Name, Identities: e.Identities}
		for _, p := range e.Ports {
			m.Ports = append(m.Ports, &pb.Port{Name: p.Name, Number: uint32(p.Number), Protocol: p.Protocol})
		}
		for _, g := range e.Groups {
			m.Groups = append(m.Groups, &pb.Group{Labels: g.Labels, Ready: g.Ready})
		}
		out = append(out, m)
	}
	return out
}

// gateway reads the address of another cluster's gateway. Addresses that mean something else on every machine are none: a
// peer could have this cluster connect to its own ports by them. loopback says that such addresses are good all the same.
func gateway(text string, loopback bool) (netip.AddrPort, error) {
	g, err := netip.ParseAddrPort(text)
	a := g.Addr()
	if err != nil || g.Port() == 0 || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() ||
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || a.IsLoopback() && !loopback {
		return netip.AddrPort{}, fmt.Errorf("%q is not the address of a gateway", clip(text))
	}
	return g, nil
}

// readState checks what another cluster says of itself. Nothing that is malformed or out of bounds gets any further.
// loopback says whether its gateways may have loopback addresses.
func readState(m *pb.State, trustDomain string, loopback bool) (State, error) {
	s := State{
		Locality: registry.Locality{Region: m.GetLocality().GetRegion(), Zone: m.GetLocality().GetZone(), SubZone: m.GetLocality().GetSubZone()},
		Version:  clip(m.GetVersion()),
	}
	if len(m.GetGateways()) > maxGateways {
		return s, fmt.Errorf("%d gateways are more than %d", len(m.GetGateways()), maxGateways)
	}
	if !plain(s.Locality.Region, s.Locality.Zone, s.Locality.SubZone) {
		return s, fmt.Errorf("a locality is longer than %d bytes, or has characters that cannot be printed", maxText)
	}
	for _, text := range m.GetGateways() {
		g, err := gateway(text, loopback)
		if err != nil {
			return s, err
		}
		s.Gateways = append(s.Gateways, g)
	}
	if len(m.GetAnchors()) > maxAnchors || slices.ContainsFunc(m.GetAnchors(), func(a string) bool { return len(a) > maxAnchor }) {
		return s, fmt.Errorf("%d anchors, of which at most %d are taken, of at most %d bytes each", len(m.GetAnchors()), maxAnchors, maxAnchor)
	}
	s.Anchors = m.GetAnchors()
	if len(m.GetServices()) > maxServices {
		return s, fmt.Errorf("%d services are more than %d", len(m.GetServices()), maxServices)
	}
	seen := make(map[registry.ExportName]bool, len(m.GetServices()))
	services := make([]*registry.Export, 0, len(m.GetServices()))
	for _, e := range m.GetServices() {
		export, err := readExport(e, trustDomain)
		if err != nil {
			return s, err
		}
		key := export.Key()
		if seen[key] {
			return s, fmt.Errorf("service %s is there twice", key)
		}
		seen[key] = true
		services = append(services, export)
	}
	s.Services = (*registry.Exports)(nil).With(services, nil)
	return s, nil
}

func readExport(m *pb.Export, trustDomain string) (*registry.Export, error) {
	e := &registry.Export{Namespace: m.GetNamespace(), Name: m.GetName(), Identities: m.GetIdentities()}
	fail := func(format string, args ...any) (*registry.Export, error) {
		return nil, fmt.Errorf("service %s/%s: %s", clip(e.Namespace), clip(e.Name), fmt.Sprintf(format, args...))
	}
	if !labelPattern.MatchString(e.Namespace) || !labelPattern.MatchString(e.Name) {
		return fail("not a valid name")
	}
	if len(m.GetPorts()) > maxPorts || len(m.GetIdentities()) > maxIdentities || len(m.GetGroups()) > maxGroups {
		return fail("more than %d ports, %d identities or %d groups", maxPorts, maxIdentities, maxGroups)
	}
	for _, p := range m.GetPorts() {
		if p.GetNumber() == 0 || p.GetNumber() > 65535 || !protocolPattern.MatchString(p.GetProtocol()) || !plain(p.GetName()) {
			return fail("port %d %q is not valid", p.GetNumber(), clip(p.GetProtocol()))
		}
		e.Ports = append(e.Ports, registry.ExportPort{Name: p.GetName(), Number: uint16(p.GetNumber()), Protocol: p.GetProtocol()})
	}
	for _, identity := range e.Identities {
		if !plain(identity) || !strings.HasPrefix(identity, "spiffe://"+trustDomain+"/") {
			return fail("%q is not an identity of %s", clip(identity), trustDomain)
		}
	}
	for _, g := range m.GetGroups() {
		if len(g.GetLabels()) > maxLabels {
			return fail("more than %d labels", maxLabels)
		}
		for k, v := range g.GetLabels() {
			if !plain(k, v) {
				return fail("a label is longer than %d bytes, or has characters that cannot be printed", maxText)
			}
		}
		e.Groups = append(e.Groups, registry.ExportGroup{Labels: g.GetLabels(), Ready: g.GetReady()})
	}
	return e, nil
}

// plain says whether texts are short and can be shown on a terminal: a peer must not move an administrator's cursor.
func plain(texts ...string) bool {
	return !slices.ContainsFunc(texts, func(text string) bool {
		return len(text) > maxText || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
	})
}

// partBytes is about how large one part of a message becomes.
const partBytes = 256 << 10

// within are as many of the services as fit into a state that others take.
func within(services *registry.Exports) *registry.Exports {
	// What is beside the services is far smaller than one part.
	left := maxStateBytes - partBytes
	if services.Len() <= maxServices && services.Size() <= left {
		return services
	}
	all := services.Sorted()
	for i, e := range all {
		if left -= e.Size(); left < 0 || i == maxServices {
			all = all[:i]
			break
		}
	}
	return (*registry.Exports)(nil).With(all, nil)
}

// parts splits a state into messages of bounded size.
func (s State) parts() []*pb.State {
	first := s.message()
	services := first.Services
	first.Services = nil
	out := []*pb.State{first}
	size := 0
	for _, e := range services {
		n := proto.Size(e)
		if size += n; size > partBytes {
			out[len(out)-1].More = true
			out = append(out, &pb.State{})
			size = n
		}
		last := out[len(out)-1]
		last.Services = append(last.Services, e)
	}
	return out
}

// equal compares what is sent.
func (s State) equal(o State) bool {
	return s.Version == o.Version && s.Locality == o.Locality && slices.Equal(s.Gateways, o.Gateways) && slices.Equal(s.Anchors, o.Anchors) &&
		s.Services.Equal(o.Services)
}
