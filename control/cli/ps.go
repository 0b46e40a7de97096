package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/objects"
)

func (s *session) psCommand() *cobra.Command {
	var output string
	var all bool
	cmd := &cobra.Command{
		Use: "ps", Short: "List what runs: replicas, their proxies, and why something does not", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			replicas, err := c.Replicas(cmd.Context())
			if err != nil {
				return err
			}
			shown := replicas[:0:0]
			for _, r := range replicas {
				if all || s.namespace == "" || r.Namespace == s.namespace {
					shown = append(shown, r)
				}
			}
			switch output {
			case "yaml", "json":
				return objects.EncodeDocument(s.out, output, shown)
			case "", "wide":
			default:
				return usageError{fmt.Errorf("unknown output format %q: use json, yaml or wide", output)}
			}
			if len(shown) == 0 {
				fmt.Fprintln(s.err, "Nothing runs.")
				return nil
			}
			head := []string{"NAMESPACE", "NAME", "PHASE", "ADDRESS", "RESTARTS", "AGE"}
			if output == "wide" {
				head = append(head, "PID", "PROXY PID", "IDENTITY", "CERTIFICATE")
			}
			t := newTable(append(head, "MESSAGE")...)
			for _, r := range shown {
				row := []string{r.Namespace, r.State.Name, r.State.Phase, r.State.Address, strconv.Itoa(r.State.Restarts), age(r.State.Started, s.now())}
				if output == "wide" {
					row = append(row, strconv.Itoa(r.State.PID), strconv.Itoa(r.State.ProxyPID), "ns/"+r.Namespace+"/sa/"+r.ServiceAccount,
						"for "+r.CertificateExpires.Sub(s.now()).Round(time.Second).String())
				}
				t.row(append(row, r.State.Message)...)
			}
			return t.print(s.out)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, yaml or wide")
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "all namespaces, which is the default")
	s.namespaceFlag(cmd)
	return cmd
}
