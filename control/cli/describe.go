package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/agent"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

func (s *session) describeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "describe KIND NAME", Short: "Show an object with its status and origin",
		Example:           "  heddle describe virtualservice shop -n pinnacle\n  heddle describe wl/cartservice -n pinnacle",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: s.completeObjects,
		RunE: func(cmd *cobra.Command, args []string) error {
			targets, err := parseTargets(args)
			if err != nil {
				return err
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			for i, t := range targets {
				o, err := c.Get(cmd.Context(), t.kind, s.namespaceFor(t.kind), t.name)
				if err != nil {
					return err
				}
				if i > 0 {
					fmt.Fprintln(s.out)
				}
				if err := s.describe(o); err != nil {
					return err
				}
				if err := s.describeDependencies(cmd.Context(), c, o); err != nil {
					return err
				}
			}
			return nil
		},
	}
	s.namespaceFlag(cmd)
	return cmd
}

func (s *session) describe(o *objects.Object) error {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(s.out, "%-14s%s\n", name+":", value)
		}
	}
	line("Name", o.GetName())
	line("Namespace", o.GetNamespace())
	line("Kind", o.Kind.Kind+" ("+o.Kind.APIVersion()+")")
	pairs("Labels", o.GetLabels(), line)
	pairs("Annotations", o.GetAnnotations(), line)
	line("Runs as", runsAs(o))
	line("Not captured", notCaptured(o))
	line("TCP bypass", withoutBypass(o))
	if created := o.GetCreationTimestamp(); !created.IsZero() {
		line("Created", created.Format(time.RFC3339))
	}
	origin := o.Origin.String()
	if o.Origin.User != "" && o.Origin.File != "" {
		origin += " by " + o.Origin.User
	}
	if origin != "/" {
		line("Origin", origin)
	}
	line("Version", string(o.Version))
	document, err := o.Document()
	if err != nil {
		return err
	}
	for _, part := range []string{"spec", "data", "stringData", "type"} {
		value, ok := document[part]
		if !ok {
			continue
		}
		fmt.Fprintf(s.out, "%s:\n", strings.ToUpper(part[:1])+part[1:])
		var b strings.Builder
		if err := objects.EncodeDocument(&b, "yaml", value); err != nil {
			return err
		}
		for _, l := range strings.Split(strings.TrimRight(b.String(), "\n"), "\n") {
			fmt.Fprintf(s.out, "  %s\n", l)
		}
	}
	if len(o.Status.Conditions) > 0 {
		fmt.Fprintln(s.out, "Conditions:")
		t := newTable("  TYPE", "STATUS", "REASON", "SINCE", "MESSAGE")
		for _, c := range o.Status.Conditions {
			t.row("  "+c.Type, string(c.Status), c.Reason, age(c.LastTransitionTime.Time, s.now()), strings.ReplaceAll(c.Message, "\n", "; "))
		}
		if err := t.print(s.out); err != nil {
			return err
		}
	}
	if err := s.describeSections(&o.Status); err != nil {
		return err
	}
	if o.Status.Proxies > 0 {
		line("Proxies", fmt.Sprintf("%d run it", o.Status.Proxies))
	}
	if len(o.Status.Fields) > 0 {
		fmt.Fprintln(s.out, "Fields:")
		for _, f := range o.Status.Fields {
			fmt.Fprintf(s.out, "  %s: %s\n", f.Path, f.Message)
		}
	}
	if o.Status.Workload != nil && len(o.Status.Workload.Replicas) > 0 {
		fmt.Fprintln(s.out, "Replicas:")
		t := newTable("  NAME", "PHASE", "ADDRESS", "PID", "PROXY", "RESTARTS", "AGE", "MESSAGE")
		for _, r := range o.Status.Workload.Replicas {
			t.row("  "+r.Name, r.Phase, r.Address, fmt.Sprint(r.PID), fmt.Sprint(r.ProxyPID), fmt.Sprint(r.Restarts), age(r.Started, s.now()), r.Message)
		}
		return t.print(s.out)
	}
	return nil
}

// describeDependencies lists the services that a workload was seen to use, if its proxies get no others.
func (s *session) describeDependencies(ctx context.Context, c *client.Client, o *objects.Object) error {
	if o.Kind != objects.Workload || o.Status.Workload == nil {
		return nil
	}
	proxies, err := c.Proxies(ctx)
	if err != nil {
		return err
	}
	for _, p := range proxies {
		if !p.Observed || p.Namespace != o.GetNamespace() || !slices.ContainsFunc(o.Status.Workload.Replicas, func(r objects.ReplicaState) bool { return r.Name == p.Name }) {
			continue
		}
		fmt.Fprintf(s.out, "Dependencies:  %d observed\n", len(p.Dependencies))
		for _, host := range p.Dependencies {
			fmt.Fprintf(s.out, "  %s\n", host)
		}
		return nil
	}
	return nil
}

// runsAs says what a workload may do on its machine.
func runsAs(o *objects.Object) string {
	w, ok := o.Resource.(*v1alpha1.Workload)
	if !ok {
		return ""
	}
	who := "a user of its own"
	if w.Spec.User != "" {
		who = "user " + w.Spec.User + " (privileged)"
	}
	if len(w.Spec.Capabilities) == 0 {
		return who + ", without capabilities"
	}
	return who + ", with capabilities " + strings.Join(w.Spec.Capabilities, ", ") + " (privileged)"
}

// notCaptured says what of a workload's traffic passes by its proxy.
func notCaptured(o *objects.Object) string {
	w, ok := o.Resource.(*v1alpha1.Workload)
	if !ok {
		return ""
	}
	rules, err := objects.WorkloadInterception(w)
	if err != nil || rules.CaptureAll() {
		return "" // What cannot be read, as after an older version admitted it, leaves nothing out.
	}
	return rules.String() + " (privileged)"
}

// withoutBypass says why a workload that does not ask for it has no TCP bypass.
func withoutBypass(o *objects.Object) string {
	w, ok := o.Resource.(*v1alpha1.Workload)
	if !ok || w.Annotations[objects.AnnotationTCPBypass] == objects.BypassOff {
		return ""
	}
	if w.Annotations[agent.AnnotationProxyPath] != "" {
		return "off, because its proxy is not heddle-proxy"
	}
	if rules, err := objects.WorkloadInterception(w); err == nil && rules.LeavesOutbound() {
		return "off, because something that it dials is not captured"
	}
	return ""
}

func pairs(name string, values map[string]string, line func(string, string)) {
	first := true
	for _, key := range slices.Sorted(maps.Keys(values)) {
		label := ""
		if first {
			label, first = name, false
		}
		if label == "" {
			line(" ", key+"="+values[key])
		} else {
			line(label, key+"="+values[key])
		}
	}
}
