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
			"A cluster that was started with 'heddle up --tcp-bypass' has what workloads and proxies of its machine send to proxies of that\n" +
			"machine put into their receive queues by eBPF. What applications receive uses TCP, unless the annotation heddle.io/tcp-bypass of their\n" +
			"workload is both; where it is off, nothing of the workload bypasses TCP. What goes to other machines uses TCP.\n\n" +
			"Messages that go by TCP for a while: tcp_unread, the receiver has to read first what came that way; receiver_behind, it has not\n" +
			"read 128 KiB or 512 messages; unread_share, the workload has as many unread messages as are free; receiver_gone, it is closed;\n" +
			"kernel_tls, the kernel encrypts them; switched_off, the bypass is to end. Connections that use TCP alone: too_many_sockets; workload_share,\n" +
			"a workload has as many sockets there as are free; ambiguous, two of them cannot be told apart.\n\n" +
			"The exit code is not 0 when the cluster was started with it and it is not attached.",
		Example: "  heddle bypass status\n  heddle bypass status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.asking(output, "json", "yaml")
			if err != nil {
				return err
			}
			var status bypass.Status
			if err := c.Do(cmd.Context(), http.MethodGet, "/heddle/v1/agent/bypass", nil, &status); err != nil {
				return err
			}
			if output != "" {
				err = objects.EncodeDocument(s.out, output, status)
			} else {
				err = s.printBypass(status)
			}
			if err == nil && status.Wanted && (!status.Attached || status.Problem != "") {
				return silentError{}
			}
			return err
		}}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

func (s *session) printBypass(status bypass.Status) error {
	switch {
	case !status.Wanted && status.Problem != "":
		fmt.Fprintln(s.out, "To be off, but: "+status.Problem)
		return nil
	case !status.Wanted && status.Attached:
		fmt.Fprintln(s.out, "Off: the cluster was started without --tcp-bypass. Connections that bypassed TCP before go back to it.")
		return nil
	case !status.Wanted:
		fmt.Fprintln(s.out, "Off: the cluster was started without --tcp-bypass.")
		return nil
	case !status.Attached:
		fmt.Fprintln(s.out, "Not attached, connections use TCP: "+status.Problem)
		return nil
	case status.Problem != "":
		fmt.Fprintln(s.out, "Attached, but: "+status.Problem)
		return nil
	}
	t := newTable("WHAT", "COUNT")
	t.row("open sockets", fmt.Sprintf("%d of %d", status.Sockets, status.MaxSockets))
	t.row("connections bypassing TCP", strconv.FormatUint(status.Connections, 10))
	t.row("messages", strconv.FormatUint(status.Messages, 10))
	t.row("bytes", strconv.FormatUint(status.Bytes, 10))
	for _, reason := range slices.Sorted(maps.Keys(status.Fallbacks)) {
		t.row("messages by TCP, "+reason, strconv.FormatUint(status.Fallbacks[reason], 10))
	}
	for _, reason := range slices.Sorted(maps.Keys(status.Refused)) {
		t.row("connections by TCP, "+reason, strconv.FormatUint(status.Refused[reason], 10))
	}
	return t.print(s.out)
}
