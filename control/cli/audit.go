package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/server/client"
)

// auditShown is how many records are shown when nobody says how many.
const auditShown = 100

func (s *session) auditCommand() *cobra.Command {
	var filter client.AuditFilter
	var since, output string
	cmd := &cobra.Command{Use: "audit", Short: "Show who changed what, and which certificates were signed", Args: cobra.NoArgs,
		Long: "Show the cluster's audit log: who changed what, from where, and every certificate that was signed for a workload or a cluster.\n\n" +
			"A change is recorded, on the disk, before it is made (begun), and once more when it is known how it went (done, failed). What\n" +
			"cannot be recorded is refused. --refused shows what callers tried without having the role for it.",
		Example: "  heddle audit --since 1h\n  heddle audit --who alice --what Service/shop\n  heddle audit --refused\n  heddle audit --limit 0 -o json > audit.jsonl",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if filter.Since, err = sinceFlag(since, s.now()); err != nil {
				return err
			}
			c, err := s.asking(output, "json")
			if err != nil {
				return err
			}
			if output == "json" {
				return c.Audit(cmd.Context(), filter, func(line json.RawMessage) error {
					_, err := s.out.Write(line)
					return err
				})
			}
			t := newTable("TIME", "WHO", "FROM", "ACTION", "RESULT", "WHAT")
			err = c.Audit(cmd.Context(), filter, func(line json.RawMessage) error {
				var r audit.Record
				if err := json.Unmarshal(line, &r); err != nil {
					return fmt.Errorf("read audit log: %w", err)
				}
				who := r.Who
				if r.For != "" && !strings.HasSuffix(r.Who, " "+r.For) {
					who += " for " + r.For
				}
				t.row(r.Time.Format(time.RFC3339), plain(who), plain(r.From), plain(string(r.Action)), r.Result, plain(auditWhat(r)))
				return nil
			})
			if err != nil {
				return err
			}
			return t.print(s.out)
		}}
	cmd.Flags().StringVar(&filter.Who, "who", "", "only of callers whose name has this in it")
	cmd.Flags().StringVar(&filter.What, "what", "", "only actions, objects and identities whose name has this in it")
	cmd.Flags().StringVar(&since, "since", "", "only since: 1h, or 2030-01-01T12:00:00Z")
	cmd.Flags().IntVar(&filter.Limit, "limit", auditShown, "at most so many, the newest; 0 for all")
	cmd.Flags().BoolVar(&filter.Refused, "refused", false, "what was refused to callers, in place of what was done")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json: one object per line, whole, as in the log")
	return cmd
}

// auditWhat is what a record is about, in one line.
func auditWhat(r audit.Record) string {
	const most = 3
	var parts []string
	for i, o := range r.Objects {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d more", len(r.Objects)-most))
			break
		}
		parts = append(parts, strings.TrimSpace(o.Name+" "+o.Action))
	}
	for _, text := range []string{r.Detail, r.Why} {
		if text != "" {
			parts = append(parts, text)
		}
	}
	if r.Unrecorded > 0 {
		parts = append(parts, fmt.Sprintf("(%d refusals before it were too many to record)", r.Unrecorded))
	}
	return strings.Join(parts, ", ")
}

// plain keeps control characters of who was refused away from terminals.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
}
