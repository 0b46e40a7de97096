package cli

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/federation"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

// joinCommand is what is typed on the joining side, for a cluster that does not run yet.
func joinCommand(t client.TokenResponse) string {
	return fmt.Sprintf("sudo heddle up --name NAME --join %s --token %s", t.Address, t.Token)
}

func (s *session) clusterTokenCommand() *cobra.Command {
	var output string
	var ttl time.Duration
	cmd := &cobra.Command{Use: "token", Short: "Make a token by which one cluster can join", Args: cobra.NoArgs,
		Long: "Make a token by which one cluster can join this mesh, and print the command that uses it.\n\n" +
			"A token works once and for a limited time. It also carries the hash of the mesh's root key, so that the joining side knows\n" +
			"the primary before it says anything. It is kept as a hash only and cannot be shown again. Only the primary makes tokens.",
		Example: "  heddle cluster token\n  heddle cluster token --ttl 10m\n  heddle cluster token -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output, "json", "yaml"); err != nil {
				return err
			}
			if ttl <= 0 {
				return usageError{fmt.Errorf("--ttl %s: give a time that lies ahead, for example 1h", ttl)}
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			t, err := c.Token(cmd.Context(), client.TokenRequest{TTL: ttl})
			if err != nil {
				return err
			}
			if output != "" {
				return objects.EncodeDocument(s.out, output, map[string]any{"token": t.Token, "address": t.Address, "expires": t.Expires, "command": joinCommand(t)})
			}
			fmt.Fprintf(s.out, "A new cluster, on this machine (with --isolated) or another one, joins by:\n\n  %s\n\n", joinCommand(t))
			fmt.Fprintf(s.out, "A cluster that runs already joins by:\n\n  sudo heddle cluster join %s --token %s\n\n", t.Address, t.Token)
			fmt.Fprintf(s.out, "The token works once, for %s, and is not shown again.\n", duration(t.Expires.Sub(s.now())))
			return nil
		}}
	cmd.Flags().DurationVar(&ttl, "ttl", time.Hour, "how long the token works")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

// duration prints a time that lies ahead, rounded to what people say: 1h, 10m, 45s.
func duration(d time.Duration) string {
	d = d.Round(time.Second)
	if d >= time.Minute {
		d = d.Round(time.Minute)
	}
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if len(text) > len(zero) && text[len(text)-len(zero):] == zero {
			text = text[:len(text)-2]
		}
	}
	return text
}

func (s *session) clusterJoinCommand() *cobra.Command {
	var token string
	cmd := &cobra.Command{Use: "join ADDRESS --token TOKEN", Short: "Have this running cluster join the mesh of another one", Args: cobra.ExactArgs(1),
		Long: "Have the chosen cluster, which runs already, join the mesh of another one. `heddle up --join` does the same for a new cluster.\n\n" +
			"It trusts the new root beside its own, renews the certificates of all workloads without dropping a connection, and then\n" +
			"forgets the old root. Its own objects stay. A cluster that has members itself cannot join another one.",
		Example:           "  sudo heddle cluster join 198.18.0.2:15443 --token hdl1...",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if token == "" {
				return usageError{errors.New("--token is missing: `heddle cluster token` on the primary makes one")}
			}
			if _, err := federation.ParseToken(token); err != nil {
				return err
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			p := newProgress(s.out)
			p.begin("join the mesh at " + args[0])
			mesh, err := c.Join(cmd.Context(), client.JoinRequest{Address: args[0], Token: token})
			if err != nil {
				p.fail()
				return err
			}
			p.done()
			fmt.Fprintf(s.out, "Cluster %q belongs to the mesh of %q; all its workloads have certificates of that mesh.\n", mesh.Cluster, mesh.Primary)
			return nil
		}}
	cmd.Flags().StringVar(&token, "token", "", "the join token that the primary made")
	return cmd
}

func (s *session) clusterRemoveCommand() *cobra.Command {
	return &cobra.Command{Use: "remove NAME", Aliases: []string{"rm"}, Short: "Take a cluster out of the mesh at once", Args: cobra.ExactArgs(1),
		Long: "Take a cluster out of the mesh. It is asked on the primary, and nothing is asked back.\n\n" +
			"From then on no proxy of the other clusters accepts a certificate that was issued in it, whatever its lifetime, and its\n" +
			"services leave the global namespaces. Nothing is changed on the removed side, which may be out of reach.",
		Example:           "  heddle cluster remove cluster2",
		ValidArgsFunction: s.completeClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := cluster.New(args[0]); err != nil {
				return usageError{err}
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			err = c.Delete(cmd.Context(), objects.Cluster, "", args[0])
			if missing(err) {
				mesh, err := c.Federation(cmd.Context())
				if err != nil {
					return err
				}
				var names []string
				for _, cluster := range mesh.Clusters {
					names = append(names, cluster.Name)
				}
				return noCluster(mesh, args[0], names)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(s.out, "Cluster %q is out of the mesh: its certificates are refused, its services are gone from the global namespaces.\n\n", args[0])
			fmt.Fprintf(s.out, "On its own side it goes on alone, with what it has. To remove it there:\n\n  sudo heddle down --name %s\n\n", args[0])
			fmt.Fprintf(s.out, "To have it join again, make a token here with `heddle cluster token`, and there:\n\n  sudo heddle cluster join ADDRESS --token TOKEN\n")
			return nil
		}}
}

// missing says that a problem is that there is no such object.
func missing(err error) bool {
	var problem *client.Problem
	return errors.As(err, &problem) && problem.Status == http.StatusNotFound
}

func (s *session) clusterRotateCommand() *cobra.Command {
	return &cobra.Command{Use: "rotate", Short: "Get this cluster a new issuer of certificates, and renew them all", Args: cobra.NoArgs,
		Long: "Get the chosen cluster a new intermediate certificate with a new key, now instead of at two thirds of the old one's life, and\n" +
			"have every workload's certificate renewed by it. No connection is dropped: the old certificates stay valid until they end.",
		Example: "  heddle cluster rotate\n  heddle cluster rotate --cluster cluster2",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			mesh, err := c.RotateIssuer(cmd.Context())
			if err != nil {
				return err
			}
			fmt.Fprintf(s.out, "Cluster %q issues by %s, until %s; its workloads' certificates are renewed.\n", mesh.Cluster, mesh.Issuer, mesh.IssuerExpires.Format(time.DateOnly))
			return nil
		}}
}
