package federation

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/registry"
)

// State is what a cluster says of itself to the others. It is never changed: another one takes its place.
type State struct {
	About
	// Services that it exports: at the primary all of them, at a member those that it may know.
	Services *registry.Exports
}

// About is what a cluster says of itself beside its services.
type About struct {
	// Gateways are where others reach its east-west gateways.
	Gateways []netip.AddrPort  `json:"gateways,omitempty"`
	Locality registry.Locality `json:"locality,omitzero"`
	// Version of its program.
	Version string `json:"version,omitempty"`
	// Anchors are the intermediates (PEM) by which clients know its servers.
	Anchors []string `json:"anchors,omitempty"`
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
	// maxStateBytes is how large all parts of a state may be together, and all that is known of a cluster by several.
	maxStateBytes = 8 << 20
)

var (
	labelPattern    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	protocolPattern = regexp.MustCompile(`^(TCP|HTTP|HTTP2)$`)
)

// about is its message.
func (a About) about() *pb.About {
	m := &pb.About{
		Locality: &pb.Locality{Region: a.Locality.Region, Zone: a.Locality.Zone, SubZone: a.Locality.SubZone},
		Version:  a.Version, Anchors: a.Anchors,
	}
	for _, g := range a.Gateways {
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

// readAbout checks what another cluster says of itself. loopback says whether its gateways may have loopback addresses.
func readAbout(m *pb.About, loopback bool) (About, error) {
	a := About{
		Locality: registry.Locality{Region: m.GetLocality().GetRegion(), Zone: m.GetLocality().GetZone(), SubZone: m.GetLocality().GetSubZone()},
		Version:  clip(m.GetVersion()), Anchors: m.GetAnchors(),
	}
	if len(m.GetGateways()) > maxGateways {
		return a, fmt.Errorf("%d gateways are more than %d", len(m.GetGateways()), maxGateways)
	}
	if !plain(a.Locality.Region, a.Locality.Zone, a.Locality.SubZone) {
		return a, fmt.Errorf("a locality is longer than %d bytes, or has characters that cannot be printed", maxText)
	}
	for _, text := range m.GetGateways() {
		g, err := gateway(text, loopback)
		if err != nil {
			return a, err
		}
		a.Gateways = append(a.Gateways, g)
	}
	if len(a.Anchors) > maxAnchors || slices.ContainsFunc(a.Anchors, func(a string) bool { return len(a) > maxAnchor }) {
		return a, fmt.Errorf("%d anchors, of which at most %d are taken, of at most %d bytes each", len(a.Anchors), maxAnchors, maxAnchor)
	}
	return a, nil
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

// equal compares what is sent.
func (s State) equal(o State) bool {
	return s.About.equal(o.About) && s.Services.Equal(o.Services)
}

func (a About) equal(o About) bool {
	return a.Version == o.Version && a.Locality == o.Locality && slices.Equal(a.Gateways, o.Gateways) && slices.Equal(a.Anchors, o.Anchors)
}
