package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/access"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

func (s *session) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Make, list and revoke tokens for the API", Args: cobra.NoArgs,
		Long: "Make, list and revoke tokens for the API: for pipelines, and for command lines on other machines.\n\n" +
			"A token has one role, in one namespace or all, and ends by itself. (Tokens by which clusters join a mesh are others:\n" +
			"`heddle cluster token`.)",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(s.tokenCreateCommand(), s.tokenListCommand(), s.tokenRevokeCommand())
	return cmd
}

func (s *session) tokenCreateCommand() *cobra.Command {
	var request client.APITokenRequest
	var all bool
	var output string
	cmd := &cobra.Command{Use: "create", Short: "Make a token", Args: cobra.NoArgs,
		Long: "Make a token and print it. It is kept as a hash only and cannot be shown again.\n\n" +
			"Use it with `heddle context add NAME --server URL --token-file FILE`, or in the header Authorization: Bearer <token>.",
		Example: "  heddle token create --role editor -n shop --name pipeline --ttl 1h\n  heddle token create --role viewer -A -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output, "json", "yaml"); err != nil {
				return err
			}
			if _, err := access.ParseRole(request.Role); err != nil {
				return usageError{fmt.Errorf("--role: %w", err)}
			}
			if all == (s.namespace != "") {
				return usageError{errors.New("say what the token is for: -n NAMESPACE, or -A for all namespaces")}
			}
			if request.TTL <= 0 {
				return usageError{fmt.Errorf("--ttl %s: give a time that lies ahead, for example 24h", request.TTL)}
			}
			if request.Namespace = s.namespace; all {
				request.Namespace = access.Everywhere
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			made, err := c.MakeAPIToken(cmd.Context(), request)
			if err != nil {
				return err
			}
			if output != "" {
				return objects.EncodeDocument(s.out, output, made)
			}
			// The token alone is on standard output, for a file.
			fmt.Fprintf(s.err, "Token %s: %s in %s, for %s. It is not shown again; `heddle token revoke %s` ends it.\n",
				made.ID, made.Role, inWords(made.Namespace), duration(made.Expires.Sub(s.now())), made.ID)
			_, err = fmt.Fprintln(s.out, made.Token)
			return err
		}}
	cmd.Flags().StringVar(&request.Role, "role", "", "viewer, editor or admin")
	cmd.Flags().StringVar(&request.Note, "name", "", "what it is for, as lists and the audit log show it")
	cmd.Flags().DurationVar(&request.TTL, "ttl", access.DefaultTokenTTL, "how long it can be used")
	cmd.Flags().StringVarP(&s.namespace, "namespace", "n", "", "for this namespace")
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "for all namespaces")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

func inWords(namespace string) string {
	if namespace == access.Everywhere {
		return "all namespaces"
	}
	return "namespace " + namespace
}

func (s *session) tokenListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the tokens that you may revoke", Args: cobra.NoArgs,
		RunE: show(s, &output, (*client.Client).APITokens, func(tokens []client.APIToken) error {
			t := newTable("ID", "NAME", "ROLE", "NAMESPACE", "EXPIRES", "MADE BY")
			for _, token := range tokens {
				expires := "expired"
				if left := token.Expires.Sub(s.now()); left > 0 {
					expires = "in " + duration(left)
				}
				t.row(token.ID, token.Note, token.Role, token.Namespace, expires, token.MadeBy)
			}
			return t.print(s.out)
		})}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

func (s *session) tokenRevokeCommand() *cobra.Command {
	return &cobra.Command{Use: "revoke ID...", Short: "End tokens at once", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			for _, id := range args {
				if err := c.RevokeAPIToken(cmd.Context(), id); err != nil {
					return err
				}
				fmt.Fprintf(s.out, "token %s revoked\n", id)
			}
			return nil
		}}
}

// sinceFlag reads a time as people give it: 1h, or 2030-01-01T12:00:00Z.
func sinceFlag(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, usageError{fmt.Errorf("--since %s: give a time back, for example 1h, or a moment such as 2030-01-01T12:00:00Z", text)}
	}
	return at, nil
}
