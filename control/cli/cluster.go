package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

func (s *session) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Join clusters to one mesh, and look after them", Args: cobra.NoArgs,
		Long: "Join clusters to one mesh, and look after them.\n\n" +
			"The first cluster is the mesh's primary: it keeps the root of all certificates and makes join tokens. Each member dials out\n" +
			"to it; nothing else than the gateways' port has to be reachable. All of them go on by themselves when the primary is gone.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(s.clusterTokenCommand(), s.clusterJoinCommand(), s.clusterListCommand(), s.clusterStatusCommand(),
		s.clusterRemoveCommand(), s.clusterRotateCommand())
	return cmd
}

// checkFormat refuses values of -o that a command does not have.
func checkFormat(output string, formats ...string) error {
	if output == "" {
		return nil
	}
	for _, f := range formats {
		if output == f {
			return nil
		}
	}
	text := formats[0]
	for i, f := range formats[1:] {
		if i == len(formats)-2 {
			text += " or " + f
		} else {
			text += ", " + f
		}
	}
	return usageError{fmt.Errorf("unknown output format %q: use %s", output, text)}
}

func (s *session) clusterListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the clusters of the mesh, as this cluster sees them", Args: cobra.NoArgs,
		Long: "List the clusters of the mesh, as the chosen cluster sees them.\n\n" +
			"CONNECTED says whether a member's stream to the primary stands, REACHABLE whether one of its gateways answers from here,\n" +
			"SERVICES how many services it exports to this cluster.",
		Example: "  heddle cluster list\n  heddle cluster list -o wide --cluster cluster2",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output, "json", "yaml", "wide"); err != nil {
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
			if output == "json" || output == "yaml" {
				return objects.EncodeDocument(s.out, output, mesh.Clusters)
			}
			return s.printClusters(mesh, output == "wide")
		}}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, yaml or wide")
	return cmd
}

func (s *session) printClusters(mesh client.FederationStatus, wide bool) error {
	head := []string{"NAME", "ROLE", "CONNECTED", "REACHABLE", "GATEWAYS", "SERVICES", "AGE"}
	if wide {
		head = append(head, "VERSION", "LAST SEEN", "PROBLEM")
	}
	t := newTable(head...)
	for _, c := range mesh.Clusters {
		row := []string{c.Name, role(c), yesNo(c.Connected), yesNo(c.Reachable), gatewayText(c), fmt.Sprint(c.Services), age(c.Joined, s.now())}
		if c.Self {
			// It is neither its own peer nor its own client.
			row[3], row[5] = "-", "-"
		}
		if wide {
			seen := "-"
			if !c.LastSeen.IsZero() {
				seen = age(c.LastSeen, s.now())
			}
			row = append(row, orDefault(c.Version, "-"), seen, c.Problem)
		}
		t.row(row...)
	}
	return t.print(s.out)
}

func role(c client.ClusterStatus) string {
	text := "member"
	if c.Primary {
		text = "primary"
	}
	if c.Self {
		text += " (this)"
	}
	return text
}

func yesNo(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

func gatewayText(c client.ClusterStatus) string {
	var texts []string
	for _, g := range c.Gateways {
		texts = append(texts, g.String())
	}
	return list(texts)
}

// completeClusters completes the names of the mesh's clusters.
func (s *session) completeClusters(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := s.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	mesh, err := c.Federation(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, c := range mesh.Clusters {
		names = append(names, c.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
