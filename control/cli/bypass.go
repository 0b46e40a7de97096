package cli

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/agent/bypass"
	"heddle.io/heddle/control/objects"
)

// bypassPath is where an agent says what bypasses TCP.
const bypassPath = "/heddle/v1/agent/bypass"

func (s *session) bypassCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "bypass", Short: "See what bypasses TCP on the cluster's machine", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(s.bypassStatusCommand())
	return cmd
}

func (s *session) bypassStatusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "status", Short: "Show what bypasses TCP, what does not, and why", Args: cobra.NoArgs,
		Long: "Show what bypasses TCP, what does not, and why.\n\n" +
			"A cluster that was started with 'heddle up --tcp-bypass' has what is sent to sidecars of its machine, and what these answer, put into\n" +
			"receive queues by eBPF. What applications receive uses TCP, unless the annotation heddle.io/tcp-bypass of their workload is both; where\n" +
			"it is off, nothing of the workload bypasses TCP. What goes to gateways and to other machines uses TCP.\n\n" +
			"Totals are of all that was since the programs were attached first. Messages that went by TCP: tcp_unread, the receiver has to read first what\n" +
			"came that way; receiver_behind, it has not read 128 KiB or 512 messages; unread_share, the workload has as many unread messages as are\n" +
			"free; receiver_gone, it is closed; upper_layer, the sender or the receiver has an upper layer protocol, such as kernel TLS; switched_off, the\n" +
			"bypass is to end. Ends of connections that were kept from it once: workload_share, a workload has as many sockets there as are free; not_recorded, the kernel does not\n" +
			"record one; ambiguous, two of them cannot be told apart; blocking, a program waits in calls that read its socket; zerocopy, it asks what was\n" +
			"sent. Connections bypass TCP soon after both ends have used them.\n\n" +
			"The exit code is 1 when the bypass is not as it was asked for. docs/reference/bypass.md says more.",
		Example: "  heddle bypass status\n  heddle bypass status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.asking(output, "json", "yaml")
			if err != nil {
				return err
			}
			var status bypass.Status
			if err := c.Do(cmd.Context(), http.MethodGet, bypassPath, nil, &status); err != nil {
				return err
			}
			if output != "" {
				err = objects.EncodeDocument(s.out, output, status)
			} else {
				err = s.printBypass(status)
			}
			if err == nil && (status.Problem != "" || status.Wanted && !status.Attached) {
				return silentError{}
			}
			return err
		}}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

// bypassState is what there is to say before the counters.
func bypassState(status bypass.Status) string {
	switch {
	case !status.Wanted && status.Problem != "":
		return "To be off, but: " + status.Problem
	case !status.Wanted && status.Attached:
		return "Off: the cluster was started without --tcp-bypass. Connections that bypassed TCP before go back to it."
	case !status.Wanted:
		return "Off: the cluster was started without --tcp-bypass."
	case !status.Attached:
		return "Not attached, connections use TCP: " + status.Problem
	case status.Problem != "":
		return "Attached, but: " + status.Problem
	}
	return ""
}

func (s *session) printBypass(status bypass.Status) error {
	if state := bypassState(status); state != "" {
		fmt.Fprintln(s.out, state)
	}
	if status.Fallbacks == nil {
		return nil // Nothing could be read.
	}
	t := newTable("WHAT", "COUNT")
	t.row("sockets with a place", fmt.Sprintf("%d of %d", status.Sockets, status.MaxSockets))
	t.row("connections found on this machine", strconv.FormatUint(status.Connections, 10))
	t.row("messages that bypassed TCP", strconv.FormatUint(status.Messages, 10))
	t.row("bytes that bypassed TCP", strconv.FormatUint(status.Bytes, 10))
	for _, reason := range slices.Sorted(maps.Keys(status.Fallbacks)) {
		t.row("messages by TCP, "+reason, strconv.FormatUint(status.Fallbacks[reason], 10))
	}
	for _, reason := range slices.Sorted(maps.Keys(status.Refused)) {
		t.row("ends by TCP, "+reason, strconv.FormatUint(status.Refused[reason], 10))
	}
	if err := t.print(s.out); err != nil {
		return err
	}
	fmt.Fprintln(s.out)
	t = newTable("LOADED", "ID", "ENTRIES AT MOST", "MEMORY")
	for _, p := range status.Programs {
		t.row("program "+p.Name, strconv.FormatUint(uint64(p.ID), 10), "", "")
	}
	for _, m := range status.Maps {
		t.row("map "+m.Name, strconv.FormatUint(uint64(m.ID), 10), strconv.FormatUint(uint64(m.MaxEntries), 10), strconv.FormatUint(m.Memory, 10))
	}
	return t.print(s.out)
}
