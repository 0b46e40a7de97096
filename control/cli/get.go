package cli

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
	networkingv1alpha3 "istio.io/client-go/pkg/apis/networking/v1alpha3"
	securityv1 "istio.io/client-go/pkg/apis/security/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

func (s *session) getCommand() *cobra.Command {
	var output, selector string
	var all bool
	names := make([]string, 0, len(objects.Kinds))
	for _, k := range objects.Kinds {
		names = append(names, k.Typed())
	}
	cmd := &cobra.Command{
		Use: "get KIND[,KIND...] [NAME...]", Short: "List objects",
		Long:              "List objects, or print them.\n\nKinds: " + strings.Join(names, ", ") + "; or all.",
		Example:           "  heddle get services -A\n  heddle get vs shop -n pinnacle -o yaml\n  heddle get workloads -n pinnacle -o wide",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: s.completeObjects,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch output {
			case "", "wide", "yaml", "json", "name":
			default:
				return usageError{fmt.Errorf("unknown output format %q: use json, yaml, wide or name", output)}
			}
			chosen, err := labels.Parse(selector)
			if err != nil {
				return usageError{fmt.Errorf("selector %q: %w", selector, err)}
			}
			return s.get(cmd.Context(), args, output, chosen, all)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, yaml, wide or name")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "labels, for example app=cart")
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "all namespaces")
	s.namespaceFlag(cmd)
	return cmd
}

func (s *session) get(ctx context.Context, args []string, output string, selector labels.Selector, all bool) error {
	var targets []namedTarget
	var kinds []*objects.Kind
	var err error
	if strings.Contains(args[0], "/") {
		targets, err = parseTargets(args)
	} else {
		kinds, err = parseKinds(args[0])
	}
	if err != nil {
		return err
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	names := args[1:]
	var found []*objects.Object
	switch {
	case len(targets) > 0:
		for _, t := range targets {
			o, err := c.Get(ctx, t.kind, s.namespaceFor(t.kind), t.name)
			if err != nil {
				return err
			}
			found = append(found, o)
		}
	default:
		for _, kind := range kinds {
			objs, err := s.fetch(ctx, c, kind, names, all)
			if err != nil {
				return err
			}
			for _, o := range objs {
				if selector.Matches(labels.Set(o.GetLabels())) {
					found = append(found, o)
				}
			}
		}
	}
	return s.printObjects(found, kinds, output, all, len(names) == 1 || strings.Contains(args[0], "/") && len(args) == 1)
}

// parseKinds reads KIND[,KIND...] or "all".
func parseKinds(text string) ([]*objects.Kind, error) {
	if text == "all" {
		return objects.Kinds, nil
	}
	var kinds []*objects.Kind
	for _, name := range strings.Split(text, ",") {
		kind, err := objects.FindKind(name)
		if err != nil {
			return nil, usageError{err}
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

func (s *session) namespaceFor(kind *objects.Kind) string {
	if kind.Namespaced {
		return s.namespaceOr()
	}
	return ""
}

func (s *session) fetch(ctx context.Context, c *client.Client, kind *objects.Kind, names []string, all bool) ([]*objects.Object, error) {
	if len(names) == 0 {
		namespace := s.namespaceFor(kind)
		if all {
			namespace = ""
		}
		list, err := c.List(ctx, kind, namespace)
		return list.Items, err
	}
	if all {
		return nil, usageError{errors.New("names and -A do not go together: a name belongs to one namespace")}
	}
	var out []*objects.Object
	for _, name := range names {
		o, err := c.Get(ctx, kind, s.namespaceFor(kind), name)
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

func (s *session) printObjects(found []*objects.Object, kinds []*objects.Kind, output string, all, single bool) error {
	switch output {
	case "yaml", "json":
		return objects.Encode(s.out, output, !single, found...)
	case "name":
		for _, o := range found {
			fmt.Fprintln(s.out, client.Result{Key: o.Key()}.Name())
		}
		return nil
	}
	if len(found) == 0 {
		if all || len(kinds) == 1 && !kinds[0].Namespaced {
			fmt.Fprintln(s.err, "No resources found")
		} else {
			fmt.Fprintf(s.err, "No resources found in %s namespace.\n", s.namespaceOr())
		}
		return nil
	}
	groups := map[*objects.Kind][]*objects.Object{}
	for _, o := range found {
		groups[o.Kind] = append(groups[o.Kind], o)
	}
	first := true
	for _, kind := range objects.Kinds {
		objs := groups[kind]
		if len(objs) == 0 {
			continue
		}
		if !first {
			fmt.Fprintln(s.out)
		}
		first = false
		sort.SliceStable(objs, func(i, j int) bool {
			return objs[i].GetNamespace()+"/"+objs[i].GetName() < objs[j].GetNamespace()+"/"+objs[j].GetName()
		})
		if err := s.printKind(kind, objs, output == "wide", all, len(groups) > 1); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) printKind(kind *objects.Kind, objs []*objects.Object, wide, all, qualified bool) error {
	c := columnsOf(kind)
	var head []string
	if all && kind.Namespaced {
		head = append(head, "NAMESPACE")
	}
	head = append(head, "NAME")
	head = append(head, c.head...)
	if wide {
		head = append(head, c.wideHead...)
	}
	t := newTable(append(head, "AGE")...)
	for _, o := range objs {
		var row []string
		if all && kind.Namespaced {
			row = append(row, o.GetNamespace())
		}
		name := o.GetName()
		if qualified {
			name = client.Result{Key: o.Key()}.Name()
		}
		row = append(row, name)
		row = append(row, c.cells(o)...)
		if wide {
			row = append(row, c.wideCells(o)...)
		}
		t.row(append(row, age(o.GetCreationTimestamp().Time, s.now()))...)
	}
	return t.print(s.out)
}

// columns of a kind's table.
type columns struct {
	head, wideHead []string
	cells          func(*objects.Object) []string
	wideCells      func(*objects.Object) []string
}

func columnsOf(kind *objects.Kind) columns {
	none := func(*objects.Object) []string { return nil }
	conditions := func(o *objects.Object) []string {
		return []string{conditionText(o, objects.ConditionAccepted), conditionText(o, objects.ConditionProgrammed), strconv.Itoa(o.Status.Proxies)}
	}
	configured := columns{wideHead: []string{"ACCEPTED", "PROGRAMMED", "PROXIES"}, cells: none, wideCells: conditions}
	switch kind {
	case objects.Service:
		configured.head = []string{"TYPE", "CLUSTER-IP", "PORT(S)"}
		configured.cells = serviceCells
		configured.wideHead = append([]string{"SELECTOR"}, configured.wideHead...)
		configured.wideCells = func(o *objects.Object) []string {
			selector := "<none>"
			if svc, ok := o.Resource.(*corev1.Service); ok && len(svc.Spec.Selector) > 0 {
				selector = labels.FormatLabels(svc.Spec.Selector)
			}
			return append([]string{selector}, conditions(o)...)
		}
	case objects.Workload:
		return columns{head: []string{"READY", "STATUS", "RESTARTS"}, wideHead: []string{"SERVICE ACCOUNT", "ADDRESSES", "COMMAND"},
			cells: workloadCells, wideCells: func(o *objects.Object) []string {
				w, ok := o.Resource.(*v1alpha1.Workload)
				if !ok {
					return []string{"", "", ""}
				}
				var addresses []string
				if o.Status.Workload != nil {
					for _, r := range o.Status.Workload.Replicas {
						addresses = append(addresses, r.Address)
					}
				}
				return []string{w.Spec.ServiceAccount, strings.Join(addresses, ","), strings.Join(append(append([]string{}, w.Spec.Command...), w.Spec.Args...), " ")}
			}}
	case objects.Secret:
		return columns{head: []string{"TYPE", "DATA"}, cells: func(o *objects.Object) []string {
			if text := conditionText(o, objects.ConditionAccepted); strings.HasPrefix(text, "False") {
				return []string{"<unknown>", text}
			}
			if secret, ok := o.Resource.(*corev1.Secret); ok {
				return []string{string(secret.Type), strconv.Itoa(len(secret.Data) + len(secret.StringData))}
			}
			return []string{"", ""}
		}, wideCells: none}
	case objects.VirtualService:
		configured.head = []string{"GATEWAYS", "HOSTS"}
		configured.cells = func(o *objects.Object) []string {
			if r, ok := o.Resource.(*networkingv1.VirtualService); ok {
				return []string{list(r.Spec.Gateways), list(r.Spec.Hosts)}
			}
			return []string{"", ""}
		}
	case objects.DestinationRule:
		configured.head = []string{"HOST"}
		configured.cells = func(o *objects.Object) []string {
			if r, ok := o.Resource.(*networkingv1.DestinationRule); ok {
				return []string{r.Spec.Host}
			}
			return []string{""}
		}
	case objects.ServiceEntry:
		configured.head = []string{"HOSTS", "LOCATION", "RESOLUTION"}
		configured.cells = func(o *objects.Object) []string {
			if r, ok := o.Resource.(*networkingv1.ServiceEntry); ok {
				return []string{list(r.Spec.Hosts), r.Spec.Location.String(), r.Spec.Resolution.String()}
			}
			return []string{"", "", ""}
		}
	case objects.WorkloadEntry:
		configured.head = []string{"ADDRESS"}
		configured.cells = func(o *objects.Object) []string {
			if r, ok := o.Resource.(*networkingv1.WorkloadEntry); ok {
				return []string{r.Spec.Address}
			}
			return []string{""}
		}
	case objects.Gateway:
		configured.head = []string{"SELECTOR", "PORTS"}
		configured.cells = func(o *objects.Object) []string {
			r, ok := o.Resource.(*networkingv1.Gateway)
			if !ok {
				return []string{"", ""}
			}
			var ports []string
			for _, server := range r.Spec.Servers {
				ports = append(ports, fmt.Sprintf("%d/%s", server.GetPort().GetNumber(), server.GetPort().GetProtocol()))
			}
			return []string{labels.FormatLabels(r.Spec.Selector), list(ports)}
		}
	case objects.GatewayClass:
		configured.head = []string{"CONTROLLER"}
		configured.cells = func(o *objects.Object) []string {
			if r, ok := o.Resource.(*gatewayv1.GatewayClass); ok {
				return []string{string(r.Spec.ControllerName)}
			}
			return []string{""}
		}
	case objects.KubernetesGateway:
		configured.head = []string{"CLASS", "PORTS"}
		configured.cells = func(o *objects.Object) []string {
			r, ok := o.Resource.(*gatewayv1.Gateway)
			if !ok {
				return []string{"", ""}
			}
			var ports []string
			for _, l := range r.Spec.Listeners {
				ports = append(ports, fmt.Sprintf("%d/%s", l.Port, l.Protocol))
			}
			return []string{string(r.Spec.GatewayClassName), list(ports)}
		}
	case objects.HTTPRoute, objects.GRPCRoute, objects.TLSRoute, objects.TCPRoute:
		configured.head = []string{"PARENTS", "HOSTNAMES"}
		configured.cells = routeCells
	case objects.PeerAuthentication:
		configured.head = []string{"MODE"}
		configured.cells = func(o *objects.Object) []string {
			if r, ok := o.Resource.(*securityv1.PeerAuthentication); ok {
				return []string{r.Spec.GetMtls().GetMode().String()}
			}
			return []string{""}
		}
	case objects.RequestAuthentication:
		configured.head = []string{"ISSUERS"}
		configured.cells = func(o *objects.Object) []string {
			var issuers []string
			if r, ok := o.Resource.(*securityv1.RequestAuthentication); ok {
				for _, rule := range r.Spec.GetJwtRules() {
					issuers = append(issuers, rule.GetIssuer())
				}
			}
			return []string{list(issuers)}
		}
	case objects.EnvoyFilter:
		configured.head = []string{"PATCHES", "PRIORITY"}
		configured.cells = func(o *objects.Object) []string {
			if r, ok := o.Resource.(*networkingv1alpha3.EnvoyFilter); ok {
				return []string{fmt.Sprint(len(r.Spec.GetConfigPatches())), fmt.Sprint(r.Spec.GetPriority())}
			}
			return []string{"", ""}
		}
	case objects.AuthorizationPolicy:
		configured.head = []string{"ACTION"}
		configured.cells = func(o *objects.Object) []string {
			if r, ok := o.Resource.(*securityv1.AuthorizationPolicy); ok {
				return []string{r.Spec.GetAction().String()}
			}
			return []string{""}
		}
	case objects.GlobalNamespace:
		configured.head = []string{"DOMAIN", "MAPPINGS"}
		configured.cells = globalNamespaceCells
	case objects.Cluster:
		return columns{head: []string{"ROLE"}, cells: func(o *objects.Object) []string {
			if c, ok := o.Resource.(*v1alpha1.Cluster); ok && c.Spec.Primary {
				return []string{"primary"}
			}
			return []string{"member"}
		}, wideCells: none}
	case objects.Namespace:
		return columns{head: []string{"STATUS"}, cells: func(*objects.Object) []string { return []string{"Active"} }, wideCells: none}
	default:
		return columns{cells: none, wideCells: none}
	}
	return configured
}

func serviceCells(o *objects.Object) []string {
	svc, ok := o.Resource.(*corev1.Service)
	if !ok {
		return []string{"", "", ""}
	}
	kind, address := string(svc.Spec.Type), svc.Spec.ClusterIP
	if kind == "" {
		kind = string(corev1.ServiceTypeClusterIP)
	}
	if address == "" {
		address = "<none>"
	}
	var ports []string
	for _, p := range svc.Spec.Ports {
		protocol := string(p.Protocol)
		if protocol == "" {
			protocol = "TCP"
		}
		ports = append(ports, fmt.Sprintf("%d/%s", p.Port, protocol))
	}
	return []string{kind, address, list(ports)}
}

func globalNamespaceCells(o *objects.Object) []string {
	g, ok := o.Resource.(*v1alpha1.GlobalNamespace)
	if !ok {
		return []string{"", ""}
	}
	var mappings []string
	for _, m := range g.Spec.Mappings {
		mappings = append(mappings, m.Cluster+"/"+m.Namespace)
	}
	return []string{g.Spec.Domain, list(mappings)}
}

func workloadCells(o *objects.Object) []string {
	w, ok := o.Resource.(*v1alpha1.Workload)
	if !ok {
		return []string{"", "", ""}
	}
	ready, restarts, status := 0, 0, "Pending"
	var replicas []objects.ReplicaState
	if o.Status.Workload != nil {
		replicas = o.Status.Workload.Replicas
	}
	for _, r := range replicas {
		restarts += r.Restarts
		if r.Phase == "Ready" {
			ready++
		} else {
			status = r.Phase
		}
	}
	wanted := w.ReplicaCount()
	switch {
	case w.Annotations["heddle.io/stopped"] == "true":
		status, wanted = "Stopped", 0
	case ready == wanted && wanted > 0:
		status = "Ready"
	case wanted == 0:
		status = "Stopped"
	}
	return []string{fmt.Sprintf("%d/%d", ready, wanted), status, strconv.Itoa(restarts)}
}

func conditionText(o *objects.Object, kind string) string {
	for _, c := range o.Status.Conditions {
		if c.Type == kind {
			if c.Status == metav1.ConditionTrue {
				return "True"
			}
			return string(c.Status) + " (" + c.Reason + ")"
		}
	}
	return "Unknown"
}

func list(items []string) string {
	if len(items) == 0 {
		return "<none>"
	}
	return strings.Join(items, ",")
}

// completeObjects completes kinds, then names.
func (s *session) completeObjects(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	if len(args) == 0 {
		for _, k := range objects.Kinds {
			out = append(out, k.Typed())
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	kind, err := objects.FindKind(args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := s.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	found, err := c.List(cmd.Context(), kind, s.namespaceFor(kind))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, o := range found.Items {
		out = append(out, o.GetName())
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// routeCells are the parents and hostnames of a route of Gateway API.
func routeCells(o *objects.Object) []string {
	var parents []gatewayv1.ParentReference
	var hostnames []gatewayv1.Hostname
	switch r := o.Resource.(type) {
	case *gatewayv1.HTTPRoute:
		parents, hostnames = r.Spec.ParentRefs, r.Spec.Hostnames
	case *gatewayv1.GRPCRoute:
		parents, hostnames = r.Spec.ParentRefs, r.Spec.Hostnames
	case *gatewayv1.TLSRoute:
		parents, hostnames = r.Spec.ParentRefs, r.Spec.Hostnames
	case *gatewayv1.TCPRoute:
		parents = r.Spec.ParentRefs
	}
	var names, hosts []string
	for _, p := range parents {
		names = append(names, string(p.Name))
	}
	for _, h := range hostnames {
		hosts = append(hosts, string(h))
	}
	return []string{list(names), list(hosts)}
}
