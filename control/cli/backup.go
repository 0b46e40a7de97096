package cli

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/durable"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store/backup"
)

func (s *session) backupCommand() *cobra.Command {
	return &cobra.Command{Use: "backup FILE", Short: "Write all objects of the cluster into one file", Args: cobra.ExactArgs(1),
		Long: "Write all objects of the cluster into one file, which is whole or not there. Secrets in it are sealed with the key of the\n" +
			"cluster's store, secrets.key in the store's directory, which is not in the file: keep it too, elsewhere. Statuses are not in\n" +
			"the file; the controller finds them anew. Admins only.",
		Example: "  heddle backup monday.heddle",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			content, err := c.Backup(cmd.Context())
			if err != nil {
				return err
			}
			header, all, err := backup.Read(content)
			if err != nil {
				return fmt.Errorf("received from the controller: %w", err)
			}
			if err := durable.Write(args[0], content, 0o600); err != nil {
				return err
			}
			fmt.Fprintf(s.out, "%d objects of cluster %s are in %s\n", len(all), header.Cluster, args[0])
			return nil
		}}
}

func (s *session) restoreCommand() *cobra.Command {
	var replace, force bool
	cmd := &cobra.Command{Use: "restore FILE", Short: "Make the cluster's objects what a backup says", Args: cobra.ExactArgs(1),
		Long: "Make the cluster's objects what a backup says: those that differ are changed, those that are not in it are deleted. Without\n" +
			"--replace, only what is missing is created, and a cluster that has other objects is refused. The file is checked as a whole\n" +
			"before anything is written, its objects as `heddle apply` checks them, and what is interrupted is finished. The cluster must\n" +
			"have the name of the one that was backed up, and its store the same secrets.key. Tokens stay as they are, and no cluster\n" +
			"leaves the mesh. Admins only.\n\n" +
			"What would be refused if it were applied now stops the restore. With --force it is stored all the same: it is in force as far as\n" +
			"it can be, its status says why, and clusters that were removed from the mesh since are members again. Workloads that are\n" +
			"privileged where that is not allowed are refused in any case.",
		Example: "  heddle up && heddle restore monday.heddle\n  heddle restore monday.heddle --replace",
		RunE: func(cmd *cobra.Command, args []string) error {
			content, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("read backup: %w", err)
			}
			if _, _, err := backup.Read(content); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			r, err := c.Restore(cmd.Context(), client.RestoreRequest{Backup: content, Replace: replace, Force: force})
			if err != nil {
				return err
			}
			fmt.Fprintf(s.out, "restored the backup of %s: %d objects created, %d changed, %d deleted\n", r.Taken.Format(time.RFC3339), r.Created, r.Changed, r.Deleted)
			return nil
		}}
	cmd.Flags().BoolVar(&replace, "replace", false, "change and delete objects that are there")
	cmd.Flags().BoolVar(&force, "force", false, "restore objects too that would be refused if they were applied now")
	return cmd
}
