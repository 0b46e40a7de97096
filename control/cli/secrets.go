package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
)

func (s *session) secretsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "secrets", Short: "See how Secrets are encrypted, and change the key", Args: cobra.NoArgs,
		Long: "See how Secrets are encrypted where they are stored, and change the key.\n\n" +
			"Each Secret is encrypted by itself, with AES-256-GCM. The keys are in a file that only root reads, which `heddle up\n" +
			"--secrets-key-file` names; with `heddle up --kms-command` they are wrapped by a key management service. The file belongs into a\n" +
			"backup of its own: without it, a copy of the store tells nobody a Secret, its owner included.\n\n" +
			"(The Secrets themselves are objects: `heddle get secrets`.)",
		Example: "  heddle secrets status\n  sudo heddle secrets rotate",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(s.secretsStatusCommand(), s.secretsRotateCommand(), s.secretsDiscardCommand())
	return cmd
}

func (s *session) secretsStatusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "status", Short: "Show the keys, how many Secrets are encrypted with each, and those that cannot be decrypted", Args: cobra.NoArgs,
		Long: "Show the keys that Secrets are encrypted with, without what makes them secret, how many Secrets are encrypted with each, and\n" +
			"those that cannot be decrypted.\n\nThe exit code is 1 when there are Secrets that cannot be decrypted or are not encrypted.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.asking(output, "json", "yaml")
			if err != nil {
				return err
			}
			status, err := c.Secrets(cmd.Context())
			if err != nil {
				return err
			}
			return s.printSecrets(status, output)
		}}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

func (s *session) secretsRotateCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "rotate", Short: "Encrypt all Secrets with a new key, and forget the older ones", Args: cobra.NoArgs,
		Long: "Make a new key, encrypt all Secrets with it, have the store forget its history, and then forget the older keys. Nothing stops\n" +
			"meanwhile. A rotation that ended early is finished by the next one, or by the controller when it starts.\n\n" +
			"Backups of the store from before need the key file from before.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.asking(output, "json", "yaml")
			if err != nil {
				return err
			}
			status, err := c.RotateSecrets(cmd.Context())
			if err != nil {
				return err
			}
			return s.printSecrets(status, output)
		}}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

func (s *session) secretsDiscardCommand() *cobra.Command {
	return &cobra.Command{Use: "discard BATCH", Short: "Give up an interrupted batch of changes whose key is lost", Args: cobra.ExactArgs(1),
		Long: "Give up an interrupted batch of changes that waits for its key, because the key is lost for good. `heddle check` names such a\n" +
			"batch. What of it was written stays; the rest is not written any more: apply those manifests again. There is no way back, also\n" +
			"not with the key. Admins only, and recorded in the audit log.",
		Example: "  heddle secrets discard 4f6ad0f2-5d55-4f0e-9a8e-6c1b3f6f2f1e",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			r, err := c.Discard(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(s.out, "Batch %s is given up.\n", r.ID)
			if len(r.Left) == 0 {
				fmt.Fprintln(s.out, "What was in it could not be read: apply again what was applied then.")
				return nil
			}
			fmt.Fprintf(s.out, "%s not as it would have them; apply again:\n", areIs(len(r.Left), "object"))
			for _, o := range r.Left {
				fmt.Fprintf(s.out, "  %s\n", o)
			}
			return nil
		}}
}

// printSecrets prints the status; the error is silent and says that not all is well.
func (s *session) printSecrets(status seal.Status, output string) error {
	var result error
	if len(status.Unreadable) > 0 || status.Unsealed > 0 || status.Problem != "" {
		result = silentError{}
	}
	if output != "" {
		if err := objects.EncodeDocument(s.out, output, status); err != nil {
			return err
		}
		return result
	}
	fmt.Fprintf(s.out, "Keys in %s\n", status.File)
	t := newTable("KEY", "MADE", "KEPT", "SECRETS", "STATUS")
	for _, k := range status.Keys {
		kept, state := "as it is, for root only", "for older Secrets"
		if k.Command != "" {
			kept = "wrapped by " + k.Command
		}
		if k.Primary {
			state = "in use"
		}
		if len(k.Stores) > 0 {
			kept += ", for " + strings.Join(k.Stores, ", ")
		}
		if k.Kept != "" {
			state += ", from memory until the cluster's agent is started again: " + k.Kept
		}
		if k.Problem != "" {
			state = "cannot be used: " + k.Problem
		}
		t.row(k.ID, age(k.Created, s.now())+" ago", kept, strconv.Itoa(k.Secrets), state)
	}
	if err := t.print(s.out); err != nil {
		return err
	}
	if status.Problem != "" {
		fmt.Fprintf(s.out, "\nWarning: %s.\n", status.Problem)
	}
	if status.Command != "" && len(status.Keys) > 0 && status.Keys[len(status.Keys)-1].Command != status.Command {
		fmt.Fprintf(s.out, "\nNew keys are wrapped by %s: `heddle secrets rotate` makes one.\n", status.Command)
	}
	if status.Unsealed > 0 {
		fmt.Fprintf(s.out, "\n%s not encrypted: run `heddle secrets rotate`.\n", areIs(status.Unsealed, "Secret"))
	}
	if status.Rotating && len(status.Unreadable) == 0 {
		fmt.Fprintln(s.out, "\nA rotation is not at its end: `heddle secrets rotate` finishes it.")
	}
	if len(status.Unreadable) > 0 {
		fmt.Fprintf(s.out, "\n%s cannot be decrypted:\n", count(len(status.Unreadable), "Secret"))
		for _, u := range status.Unreadable {
			fmt.Fprintf(s.out, "  %s: %s\n", u.Secret, u.Why)
		}
		return result
	}
	if result == nil {
		fmt.Fprintf(s.out, "\n%s encrypted, and can be decrypted.\n", areIs(status.Secrets, "Secret"))
	}
	return result
}

// areIs is "1 Secret is" or "2 Secrets are".
func areIs(n int, what string) string {
	if n == 1 {
		return "1 " + what + " is"
	}
	return fmt.Sprintf("%d %ss are", n, what)
}
