package cli

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

func (s *session) clusterStatusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "status [NAME]", Short: "Show how the mesh, or one of its clusters, is doing", Args: cobra.MaximumNArgs(1),
		Long: "Show how the mesh is doing, or one of its clusters, as the chosen cluster sees it.\n\n" +
			"The exit code is not 0 when something is wrong: a stream to the primary is down, a gateway does not answer, or this cluster's\n" +
			"issuer has expired.",
		Example:           "  heddle cluster status\n  heddle cluster status cluster2\n  heddle cluster status -o json",
		ValidArgsFunction: s.completeClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(output, "json", "yaml"); err != nil {
				return err
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			mesh, err := c.Federation(cmd.Context())
			if err != nil {
				return err
			}
			if len(args) == 1 {
				return s.oneCluster(mesh, args[0], output)
			}
			if output != "" {
				if err := objects.EncodeDocument(s.out, output, mesh); err != nil {
					return err
				}
			} else {
				s.printMesh(mesh)
			}
			if len(s.meshProblems(mesh)) > 0 {
				return silentError{}
			}
			return nil
		}}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

// ownProblems says what is wrong with the cluster that was asked.
func (s *session) ownProblems(mesh client.FederationStatus) []string {
	var out []string
	switch {
	case !mesh.Connected:
		out = append(out, "no stream to the primary "+mesh.Primary+because(mesh.Problem))
	case mesh.Problem != "":
		out = append(out, mesh.Problem)
	}
	if !mesh.IssuerExpires.IsZero() && !s.now().Before(mesh.IssuerExpires) {
		out = append(out, fmt.Sprintf("its issuer expired %s ago; workloads cannot renew their certificates", s.now().Sub(mesh.IssuerExpires).Round(time.Second)))
	}
	return out
}

// problems says what is wrong with another cluster.
func (s *session) problems(c client.ClusterStatus) []string {
	var out []string
	if !c.Connected {
		text := "its stream to the primary is down"
		if !c.LastSeen.IsZero() {
			text += fmt.Sprintf(", last heard of %s ago", age(c.LastSeen, s.now()))
		}
		out = append(out, text)
	}
	if len(c.Gateways) > 0 && !c.Reachable {
		out = append(out, "none of its gateways answers from here; its services are out of rotation")
	}
	if c.Problem != "" {
		out = append(out, c.Problem)
	}
	return out
}

// meshProblems lists everything that is wrong, by cluster.
func (s *session) meshProblems(mesh client.FederationStatus) map[string][]string {
	out := map[string][]string{}
	for _, c := range mesh.Clusters {
		found := s.problems(c)
		if c.Self {
			found = s.ownProblems(mesh)
		}
		if len(found) > 0 {
			out[c.Name] = found
		}
	}
	if found := s.ownProblems(mesh); len(found) > 0 {
		out[mesh.Cluster] = found
	}
	return out
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

func (s *session) fact(name, value string) {
	if value != "" {
		fmt.Fprintf(s.out, "%-14s%s\n", name+":", value)
	}
}

// printMesh shows the cluster that was asked, and a line for each other one.
func (s *session) printMesh(mesh client.FederationStatus) {
	s.fact("Cluster", mesh.Cluster)
	s.printSelf(mesh)
	if len(mesh.Clusters) < 2 {
		if mesh.Primary == mesh.Cluster {
			fmt.Fprintln(s.out, "\nNo other cluster has joined; `heddle cluster token` prints the command for one.")
		}
		return
	}
	fmt.Fprintln(s.out, "\nOther clusters:")
	for _, c := range mesh.Clusters {
		if c.Self {
			continue
		}
		found := s.problems(c)
		mark, text := "✓", otherText(c)
		if len(found) > 0 {
			mark, text = "✗", strings.Join(found, "; ")
		}
		fmt.Fprintf(s.out, "  %s %-12s %s\n", mark, c.Name, text)
	}
}

// otherText describes a cluster that is well.
func otherText(c client.ClusterStatus) string {
	text := "member"
	if c.Primary {
		text = "primary"
	}
	if len(c.Gateways) == 0 {
		return text + ", advertises no gateways: it can call others, others cannot call it"
	}
	return fmt.Sprintf("%s, answers at %s, exports %s to this cluster", text, gatewayText(c), count(c.Services, "service"))
}

// printSelf shows how the cluster that was asked stands in the mesh.
func (s *session) printSelf(mesh client.FederationStatus) {
	if mesh.Primary == mesh.Cluster || mesh.Primary == "" {
		s.fact("Role", "primary")
	} else {
		s.fact("Role", "member of "+mesh.Primary+" at "+mesh.PrimaryAddress)
		s.fact("Connected", yesNo(mesh.Connected))
	}
	s.fact("Advertises", orDefault(mesh.Advertise, "no address: other clusters cannot call it"))
	expires := mesh.IssuerExpires.Sub(s.now())
	if expires > 0 {
		s.fact("Issuer", fmt.Sprintf("%s, for %s", mesh.Issuer, age(s.now().Add(-expires), s.now())))
	} else {
		s.fact("Issuer", mesh.Issuer+", expired")
	}
	for _, p := range s.ownProblems(mesh) {
		s.fact("Problem", p)
	}
}

// oneCluster shows one cluster.
func (s *session) oneCluster(mesh client.FederationStatus, name, output string) error {
	var names []string
	for _, c := range mesh.Clusters {
		names = append(names, c.Name)
		if c.Name != name {
			continue
		}
		if output != "" {
			if err := objects.EncodeDocument(s.out, output, c); err != nil {
				return err
			}
		} else {
			s.printCluster(mesh, c)
		}
		if len(s.meshProblems(mesh)[name]) > 0 {
			return silentError{}
		}
		return nil
	}
	return noCluster(mesh, name, names)
}

// noCluster says that the mesh has no such cluster, and which ones it has.
func noCluster(mesh client.FederationStatus, name string, names []string) error {
	remedy := "`heddle cluster list` shows the clusters"
	if near := objects.Nearest(name, names); near != "" {
		remedy = fmt.Sprintf("did you mean %q?", near)
	}
	return &client.Problem{Status: http.StatusNotFound, What: fmt.Sprintf("no cluster %q belongs to the mesh", name), Where: "mesh of " + orDefault(mesh.Primary, mesh.Cluster),
		Why: "its clusters are: " + list(names), Remedy: remedy}
}

func (s *session) printCluster(mesh client.FederationStatus, c client.ClusterStatus) {
	s.fact("Cluster", c.Name)
	if c.Self {
		s.printSelf(mesh)
	} else {
		s.fact("Role", role(c))
		s.fact("Connected", yesNo(c.Connected))
		if !c.LastSeen.IsZero() {
			s.fact("Last seen", age(c.LastSeen, s.now())+" ago")
		}
		s.fact("Gateways", gatewayText(c))
		s.fact("Reachable", yesNo(c.Reachable)+", from "+mesh.Cluster)
		s.fact("Exports", count(c.Services, "service")+" to "+mesh.Cluster)
		for _, p := range s.problems(c) {
			s.fact("Problem", p)
		}
	}
	s.fact("Version", c.Version)
	if !c.Joined.IsZero() {
		s.fact("Joined", age(c.Joined, s.now())+" ago")
	}
}

// count gives a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
