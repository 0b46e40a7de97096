package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

const (
	// maxClock is how far apart the clocks of two clusters may be, as for joining.
	maxClock = time.Minute
	// lateIssuer is the rest of an intermediate's life at which it should long have been renewed.
	lateIssuer = 21 * 24 * time.Hour
)

// checkMesh tries what a cluster needs of the others. A cluster by itself has nothing to check.
func (s *session) checkMesh(ctx context.Context, c *client.Client, name string, replicas []client.Replica) []finding {
	mesh, err := c.Federation(ctx)
	if err != nil {
		return []finding{tried("mesh", "answers", err, "", "see `heddle logs --controller`")}
	}
	if len(mesh.Clusters) < 2 && mesh.Primary == name {
		return nil
	}
	out := s.checkOwnPlace(mesh)
	for _, peer := range mesh.Clusters {
		if !peer.Self {
			out = append(out, s.checkPeer(mesh, peer)...)
		}
	}
	list, err := c.List(ctx, objects.GlobalNamespace, "")
	if err != nil {
		return append(out, said("mesh", "global namespaces", err, "", "see `heddle logs --controller`"))
	}
	m := meshCheck{session: s, client: c, mesh: mesh, replicas: replicas}
	for _, o := range list.Items {
		if g, ok := o.Resource.(*v1alpha1.GlobalNamespace); ok {
			m.global = append(m.global, g)
		}
	}
	if len(m.global) == 0 {
		return append(out, warn(said("mesh", "global namespaces", errors.New("there is none: clusters do not see each other's services"), "", "`heddle gns create --help` shows how to make one")))
	}
	out = append(out, m.imports(ctx)...)
	return append(out, m.names(ctx)...)
}

// checkOwnPlace checks how the cluster itself stands in the mesh.
func (s *session) checkOwnPlace(mesh client.FederationStatus) []finding {
	var out []finding
	if mesh.Primary != mesh.Cluster {
		var problem error
		if !mesh.Connected || mesh.Problem != "" {
			problem = errors.New(orDefault(mesh.Problem, "no stream to the primary"))
		}
		out = append(out, said("mesh", "primary", problem, "stream to "+mesh.Primary+" at "+mesh.PrimaryAddress, "the cluster goes on with what it knows; `heddle logs --controller` shows why there is no stream"))
		var apart error
		if mesh.Clock.Abs() > maxClock {
			apart = fmt.Errorf("%s's clock is %s", mesh.Primary, ahead(mesh.Clock))
		}
		out = append(out, said("mesh", "clock", apart, fmt.Sprintf("%s's clock is %s", mesh.Primary, ahead(mesh.Clock)), "set both by NTP, for example with `timedatectl set-ntp true`"))
	} else if mesh.Problem != "" {
		out = append(out, said("mesh", "primary", errors.New(mesh.Problem), "", "see `heddle logs --controller`"))
	}
	left := mesh.IssuerExpires.Sub(s.now())
	issuer := said("mesh", "issuer", nil, fmt.Sprintf("%s, valid for %s", mesh.Issuer, days(left)), "")
	switch {
	case left <= 0:
		issuer = said("mesh", "issuer", fmt.Errorf("%s expired %s ago", mesh.Issuer, days(-left)), "", "`heddle cluster rotate` gets a new one when the primary can be reached")
	case left < lateIssuer:
		issuer = warn(said("mesh", "issuer", fmt.Errorf("%s is valid for %s only, and was to be renewed before", mesh.Issuer, days(left)), "", "`heddle cluster rotate` gets a new one when the primary can be reached"))
	}
	return append(out, issuer)
}

// ahead says how far a clock is from this one.
func ahead(by time.Duration) string {
	by = by.Round(time.Millisecond)
	if by == 0 {
		return "the same as this one's"
	}
	if by < 0 {
		return (-by).String() + " behind"
	}
	return by.String() + " ahead"
}

func days(d time.Duration) string {
	if d < 48*time.Hour {
		return d.Round(time.Minute).String()
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

// checkPeer checks another cluster from this one.
func (s *session) checkPeer(mesh client.FederationStatus, peer client.ClusterStatus) []finding {
	subject := "cluster/" + peer.Name
	var out []finding
	if !peer.Primary {
		var problem error
		if !peer.Connected {
			problem = errors.New("its stream to the primary is down")
			if !peer.LastSeen.IsZero() {
				problem = fmt.Errorf("%w, last heard of %s ago", problem, age(peer.LastSeen, s.now()))
			}
		}
		out = append(out, said(subject, "connected", problem, "its stream to the primary stands", "it goes on with what it knows; see `heddle cluster status` there"))
	}
	if len(peer.Gateways) == 0 {
		out = append(out, warn(said(subject, "reachable", errors.New("it advertises no address, so its services cannot be called"), "", "start it with `heddle up --advertise ADDRESS` or --isolated")))
	} else {
		var problem error
		if !peer.Reachable {
			problem = errors.New(orDefault(peer.Problem, gatewayText(peer)+" does not answer"))
		}
		detail := gatewayText(peer) + " answers"
		if !slices.Contains(s.contexts.clusters(), peer.Name) {
			detail += "; the way back is checked on its own machine"
		}
		out = append(out, said(subject, "reachable", problem, detail, "its services are out of rotation; check the network between the machines, TCP port "+portOf(peer)))
	}
	if self := selfOf(mesh); peer.Version != "" && self.Version != "" && peer.Version != self.Version {
		out = append(out, warn(said(subject, "version", fmt.Errorf("it runs %s, this cluster %s", peer.Version, self.Version), "", "upgrade the older one")))
	}
	return out
}

func selfOf(mesh client.FederationStatus) client.ClusterStatus {
	for _, c := range mesh.Clusters {
		if c.Self {
			return c
		}
	}
	return client.ClusterStatus{}
}

func portOf(c client.ClusterStatus) string {
	var ports []string
	for _, g := range c.Gateways {
		if text := fmt.Sprint(g.Port()); !slices.Contains(ports, text) {
			ports = append(ports, text)
		}
	}
	return strings.Join(ports, ", ")
}
