package cli

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

func (s *session) gnsGetCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "get [NAME...]", Aliases: []string{"list", "ls"}, Short: "List global namespaces",
		Example:           "  heddle gns get\n  heddle gns get boutique -o yaml",
		ValidArgsFunction: s.completeGlobalNamespaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(output, "json", "yaml", "wide", "name"); err != nil {
				return err
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			found, err := s.fetch(cmd.Context(), c, objects.GlobalNamespace, args, false)
			if err != nil {
				return err
			}
			return s.printObjects(found, []*objects.Kind{objects.GlobalNamespace}, output, false, len(args) == 1)
		}}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, yaml, wide or name")
	return cmd
}

func (s *session) gnsDescribeCommand() *cobra.Command {
	return &cobra.Command{Use: "describe NAME", Short: "Show a global namespace: what runs where, its names, its problems", Args: cobra.ExactArgs(1),
		Long: "Show a global namespace as the chosen cluster sees it: the namespaces that it maps, its services with the clusters that they\n" +
			"run in and the names that they answer to, and what does not work.",
		Example:           "  heddle gns describe boutique\n  heddle gns describe boutique --cluster cluster2",
		ValidArgsFunction: s.completeGlobalNamespaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			view, err := readGlobalNamespace(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			return s.describeGlobalNamespace(view)
		}}
}

// gnsView is everything about a global namespace, as one cluster sees it.
type gnsView struct {
	object *objects.Object
	spec   *v1alpha1.GlobalNamespaceSpec
	mesh   client.FederationStatus
	names  client.Names
	// local are this cluster's services and replicas.
	local    []*objects.Object
	replicas []client.Replica
}

func readGlobalNamespace(ctx context.Context, c *client.Client, name string) (gnsView, error) {
	var v gnsView
	var err error
	if v.object, err = c.Get(ctx, objects.GlobalNamespace, "", name); err != nil {
		if missing(err) {
			err = &client.Problem{Status: http.StatusNotFound, What: fmt.Sprintf("there is no global namespace %q", name), Remedy: "`heddle gns get` lists them"}
		}
		return v, err
	}
	g, ok := v.object.Resource.(*v1alpha1.GlobalNamespace)
	if !ok {
		return v, fmt.Errorf("global namespace %q is a %T", name, v.object.Resource)
	}
	v.spec = &g.Spec
	if v.mesh, err = c.Federation(ctx); err != nil {
		return v, err
	}
	if v.names, err = c.Names(ctx); err != nil {
		return v, err
	}
	services, err := c.List(ctx, objects.Service, "")
	if err != nil {
		return v, err
	}
	v.local = services.Items
	v.replicas, err = c.Replicas(ctx)
	return v, err
}

// maps says whether a namespace of a cluster belongs to the global namespace.
func (v gnsView) maps(cluster, namespace string) bool {
	for _, m := range v.spec.Mappings {
		if resolve.Covers(m.Cluster, cluster) && resolve.Covers(m.Namespace, namespace) {
			return true
		}
	}
	return false
}

// place is where a service runs.
type place struct {
	cluster, namespace string
	ready              int
}

// services lists the mapped services by name, with the clusters that have them.
func (v gnsView) services() map[string][]place {
	out := map[string][]place{}
	for _, o := range v.local {
		svc, ok := o.Resource.(*corev1.Service)
		if !ok || !v.maps(v.mesh.Cluster, o.GetNamespace()) {
			continue
		}
		ready := 0
		for _, r := range v.replicas {
			if r.Ready && r.Namespace == o.GetNamespace() && len(svc.Spec.Selector) > 0 && model.Selects(svc.Spec.Selector, r.Labels) {
				ready++
			}
		}
		out[o.GetName()] = append(out[o.GetName()], place{v.mesh.Cluster, o.GetNamespace(), ready})
	}
	for _, c := range v.mesh.Clusters {
		if c.Self {
			continue
		}
		for _, e := range c.Exports {
			if !v.maps(c.Name, e.Namespace) {
				continue
			}
			ready := 0
			for _, g := range e.Groups {
				ready += int(g.Ready)
			}
			out[e.Name] = append(out[e.Name], place{c.Name, e.Namespace, ready})
		}
	}
	for _, places := range out {
		sort.Slice(places, func(i, j int) bool {
			if places[i].cluster != places[j].cluster {
				return places[i].cluster < places[j].cluster
			}
			return places[i].namespace < places[j].namespace
		})
	}
	return out
}

// namesOf lists the full names under which a service is found, the global one first.
func (v gnsView) namesOf(service string, places []place) []string {
	wanted := []string{service + "." + v.spec.Domain}
	for _, p := range places {
		wanted = append(wanted, service+"."+p.namespace+".svc."+v.names.Domain)
	}
	// Aliases in mapped namespaces of this cluster that have other names.
	for _, h := range v.names.Hosts {
		if rest, ok := strings.CutPrefix(h.Name, service+"."); ok {
			if namespace, ok := strings.CutSuffix(rest, ".svc."+v.names.Domain); ok && v.maps(v.mesh.Cluster, namespace) {
				wanted = append(wanted, h.Name)
			}
		}
	}
	var found []string
	for _, name := range wanted {
		known := slices.ContainsFunc(v.names.Hosts, func(h client.NamedHost) bool { return h.Name == name })
		if known && !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found
}

// namespaces are the mapped ones that exist, as far as this cluster knows.
func (v gnsView) namespaces() []string {
	var out []string
	for _, places := range v.services() {
		for _, p := range places {
			if text := p.cluster + "/" + p.namespace; !slices.Contains(out, text) {
				out = append(out, text)
			}
		}
	}
	slices.Sort(out)
	return out
}

// problems lists what does not work.
func (v gnsView) problems(s *session) []string {
	var out []string
	for _, c := range v.object.Status.Conditions {
		if c.Status == metav1.ConditionFalse {
			out = append(out, c.Type+": "+strings.ReplaceAll(c.Message, "\n", "; "))
		}
	}
	problems := s.meshProblems(v.mesh)
	for _, m := range v.spec.Mappings {
		if !strings.Contains(m.Cluster, "*") && !slices.ContainsFunc(v.mesh.Clusters, func(c client.ClusterStatus) bool { return c.Name == m.Cluster }) {
			out = append(out, fmt.Sprintf("cluster %q is mapped and has not joined", m.Cluster))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(problems)) {
		if slices.ContainsFunc(v.spec.Mappings, func(m v1alpha1.NamespaceMapping) bool { return resolve.Covers(m.Cluster, name) }) {
			out = append(out, "cluster "+name+": "+strings.Join(problems[name], "; "))
		}
	}
	services := v.services()
	for _, name := range slices.Sorted(maps.Keys(services)) {
		ready := 0
		for _, p := range services[name] {
			ready += p.ready
		}
		if ready == 0 {
			out = append(out, fmt.Sprintf("service %s has no ready endpoint in any cluster", name))
		}
	}
	return out
}

func (s *session) describeGlobalNamespace(v gnsView) error {
	s.fact("Name", v.object.GetName())
	s.fact("Domain", v.spec.Domain)
	var mappings []string
	for _, m := range v.spec.Mappings {
		mappings = append(mappings, m.Cluster+"/"+m.Namespace)
	}
	s.fact("Maps", strings.Join(mappings, ", "))
	s.fact("Namespaces", orDefault(strings.Join(v.namespaces(), ", "), "none with services yet"))
	failover := "endpoints of the caller's own cluster first, others when those fail"
	if !v.spec.Failover() {
		failover = "off: endpoints of all clusters share the traffic"
	}
	s.fact("Failover", failover)
	if v.spec.DefaultDeny {
		s.fact("Default", "deny: calls need an AuthorizationPolicy that allows them")
	}
	s.fact("Seen from", v.mesh.Cluster)
	if err := s.describeServices(v); err != nil {
		return err
	}
	s.describeOutside(v.spec)
	for i, f := range v.object.Status.Fields {
		if i == 0 {
			fmt.Fprintln(s.out, "\nNotes:")
		}
		fmt.Fprintf(s.out, "  %s: %s\n", f.Path, f.Message)
	}
	found := v.problems(s)
	if len(found) == 0 {
		fmt.Fprintln(s.out, "\nNo problems.")
		return nil
	}
	fmt.Fprintln(s.out, "\nProblems:")
	for _, p := range found {
		fmt.Fprintf(s.out, "  ✗ %s\n", p)
	}
	return nil
}

func (s *session) describeServices(v gnsView) error {
	services := v.services()
	if len(services) == 0 {
		fmt.Fprintln(s.out, "\nNo services yet.")
		return nil
	}
	fmt.Fprintln(s.out, "\nServices:")
	t := newTable("  NAME", "CLUSTERS (READY)", "NAMES")
	for _, name := range slices.Sorted(maps.Keys(services)) {
		var where []string
		for _, p := range services[name] {
			where = append(where, fmt.Sprintf("%s (%d)", p.cluster, p.ready))
		}
		t.row("  "+name, strings.Join(where, ", "), orDefault(strings.Join(v.namesOf(name, services[name]), ", "), "<none>"))
	}
	return t.print(s.out)
}

// describeOutside lists the external and public services.
func (s *session) describeOutside(spec *v1alpha1.GlobalNamespaceSpec) {
	if len(spec.ExternalServices) > 0 {
		fmt.Fprintln(s.out, "\nExternal services:")
	}
	for _, e := range spec.ExternalServices {
		var ports []string
		for _, p := range e.Ports {
			text := fmt.Sprintf("%d", p.Port)
			if p.TargetPort != 0 && p.TargetPort != p.Port {
				text += fmt.Sprintf("→%d", p.TargetPort)
			}
			if p.TLS {
				text += " by TLS"
			}
			ports = append(ports, text)
		}
		fmt.Fprintf(s.out, "  %s.%s leads to %s, port %s\n", e.Name, spec.Domain, strings.Join(e.Hosts, ", "), strings.Join(ports, ", "))
	}
	if len(spec.PublicServices) > 0 {
		fmt.Fprintln(s.out, "\nPublic services:")
	}
	for _, p := range spec.PublicServices {
		scheme := "http"
		if p.CredentialName != "" {
			scheme = "https"
		}
		fmt.Fprintf(s.out, "  %s://%s leads to %s\n", scheme, p.Host, p.Service)
	}
}
