package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
)

func (s *session) gnsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "gns", Aliases: []string{"globalnamespace"}, Short: "Make namespaces of several clusters one", Args: cobra.NoArgs,
		Long: "Make namespaces of several clusters one.\n\n" +
			"The services of the mapped namespaces find each other under their short name, their Kubernetes name and <service>.<domain>,\n" +
			"whichever cluster they run in. A service of the same name in mapped namespaces of the same name is one service: endpoints of\n" +
			"the caller's own cluster are used first, others when those fail. Global namespaces belong to the mesh's primary.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(s.gnsCreateCommand(), s.gnsGetCommand(), s.gnsDescribeCommand(), s.gnsDeleteCommand())
	return cmd
}

// gnsOptions are the flags of `gns create`.
type gnsOptions struct {
	domain                     string
	mappings, external, public []string
	deny, noFailover, dryRun   bool
	output                     string
}

func (s *session) gnsCreateCommand() *cobra.Command {
	var o gnsOptions
	cmd := &cobra.Command{Use: "create NAME --domain DOMAIN --map CLUSTER/NAMESPACE...", Short: "Make a global namespace", Args: cobra.ExactArgs(1),
		Long: "Make a global namespace out of namespaces of clusters.\n\n" +
			"--map takes names or patterns with \"*\": cluster1/shop, */shop, east-*/team-*.\n\n" +
			"--external names a service outside of the mesh, which then answers as <name>.<domain>: name=[PROTOCOL://]HOST:PORT with\n" +
			"PROTOCOL tcp (the default), http, grpc, tls or https; for the last two, proxies speak TLS to the host. Give the flag again\n" +
			"with the same name for more hosts or ports.\n\n" +
			"--public offers a service to the outside at the ingress gateways: service[:PORT]=HOST. For HTTPS, print the object with\n" +
			"--dry-run -o yaml, add credentialName, and apply it.",
		Example: "  heddle gns create boutique --domain acme.demo --map cluster1/pinnacle --map cluster2/pinnacle\n" +
			"  heddle gns create shop --domain shop.example --map '*/shop' --default-deny --external rates=https://api.example.com:443\n" +
			"  heddle gns create shop --domain shop.example --map '*/shop' --public frontend=www.shop.example --dry-run -o yaml",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			object, err := o.object(args[0])
			if err != nil {
				return err
			}
			return s.createGlobalNamespace(cmd.Context(), object, o)
		}}
	flags := cmd.Flags()
	flags.StringVar(&o.domain, "domain", "", "DNS domain of its services, for example acme.demo")
	flags.StringArrayVar(&o.mappings, "map", nil, "CLUSTER/NAMESPACE that belongs to it; may be given several times")
	flags.StringArrayVar(&o.external, "external", nil, "NAME=[PROTOCOL://]HOST:PORT of a service outside of the mesh; may be given several times")
	flags.StringArrayVar(&o.public, "public", nil, "SERVICE[:PORT]=HOST to offer to the outside; may be given several times")
	flags.BoolVar(&o.deny, "default-deny", false, "refuse every call that no AuthorizationPolicy allows")
	flags.BoolVar(&o.noFailover, "no-failover", false, "use the endpoints of all clusters alike, instead of the caller's own first")
	flags.BoolVar(&o.dryRun, "dry-run", false, "check everything, change nothing")
	flags.StringVarP(&o.output, "output", "o", "", "json or yaml: print the object")
	return cmd
}

// object makes the object that the flags describe. Its form is for the server to check.
func (o gnsOptions) object(name string) (*objects.Object, error) {
	if err := checkFormat(o.output, "json", "yaml"); err != nil {
		return nil, err
	}
	if o.domain == "" {
		return nil, usageError{errors.New("--domain is missing: services answer as <service>.<domain>, for example --domain acme.demo")}
	}
	if len(o.mappings) == 0 {
		return nil, usageError{errors.New("--map is missing: say which namespaces belong to it, for example --map cluster1/shop --map cluster2/shop")}
	}
	g := &v1alpha1.GlobalNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GlobalNamespaceSpec{Domain: o.domain, DefaultDeny: o.deny}}
	if o.noFailover {
		off := false
		g.Spec.Resilience.LocalityFailover = &off
	}
	for _, text := range o.mappings {
		cluster, namespace, ok := strings.Cut(text, "/")
		if !ok || cluster == "" || namespace == "" || strings.Contains(namespace, "/") {
			return nil, usageError{fmt.Errorf("--map %q: write CLUSTER/NAMESPACE, for example cluster1/shop", text)}
		}
		g.Spec.Mappings = append(g.Spec.Mappings, v1alpha1.NamespaceMapping{Cluster: cluster, Namespace: namespace})
	}
	for _, text := range o.external {
		if err := addExternal(&g.Spec, text); err != nil {
			return nil, err
		}
	}
	for _, text := range o.public {
		service, err := parsePublic(text)
		if err != nil {
			return nil, err
		}
		g.Spec.PublicServices = append(g.Spec.PublicServices, service)
	}
	return &objects.Object{Resource: g, Kind: objects.GlobalNamespace}, nil
}

// externalProtocols maps a protocol to the port's name, which says the protocol to the proxies, and to TLS.
var externalProtocols = map[string]struct {
	name string
	tls  bool
}{"": {"tcp", false}, "tcp": {"tcp", false}, "http": {"http", false}, "grpc": {"grpc", false}, "tls": {"tcp", true}, "https": {"http", true}}

// addExternal reads NAME=[PROTOCOL://]HOST:PORT.
func addExternal(spec *v1alpha1.GlobalNamespaceSpec, text string) error {
	wrong := func(why string) error {
		return usageError{fmt.Errorf("--external %q: %s; write NAME=[PROTOCOL://]HOST:PORT, for example rates=https://api.example.com:443", text, why)}
	}
	name, target, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return wrong("it names no service")
	}
	scheme := ""
	if before, after, found := strings.Cut(target, "://"); found {
		scheme, target = before, after
	}
	protocol, known := externalProtocols[scheme]
	if !known {
		return wrong(fmt.Sprintf("there is no protocol %q", scheme))
	}
	host, portText, err := net.SplitHostPort(target)
	if err != nil || host == "" {
		return wrong("it has no host and port")
	}
	number, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || number == 0 {
		return wrong(fmt.Sprintf("%q is not a port number", portText))
	}
	at := slices.IndexFunc(spec.ExternalServices, func(e v1alpha1.ExternalService) bool { return e.Name == name })
	if at < 0 {
		at = len(spec.ExternalServices)
		spec.ExternalServices = append(spec.ExternalServices, v1alpha1.ExternalService{Name: name})
	}
	e := &spec.ExternalServices[at]
	if !slices.Contains(e.Hosts, host) {
		e.Hosts = append(e.Hosts, host)
	}
	port := v1alpha1.ExternalPort{Name: fmt.Sprintf("%s-%d", protocol.name, number), Port: int32(number), TLS: protocol.tls}
	same := slices.IndexFunc(e.Ports, func(p v1alpha1.ExternalPort) bool { return p.Port == port.Port })
	switch {
	case same < 0:
		e.Ports = append(e.Ports, port)
	case e.Ports[same] != port:
		return wrong(fmt.Sprintf("port %d of %s has another protocol already", number, name))
	}
	return nil
}

// parsePublic reads SERVICE[:PORT]=HOST.
func parsePublic(text string) (v1alpha1.PublicService, error) {
	wrong := usageError{fmt.Errorf("--public %q: write SERVICE[:PORT]=HOST, for example frontend=www.shop.example", text)}
	service, host, ok := strings.Cut(text, "=")
	if !ok || service == "" || host == "" {
		return v1alpha1.PublicService{}, wrong
	}
	public := v1alpha1.PublicService{Service: service, Host: host}
	if name, port, found := strings.Cut(service, ":"); found {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || number == 0 || name == "" {
			return v1alpha1.PublicService{}, wrong
		}
		public.Service, public.Port = name, int32(number)
	}
	return public, nil
}

// createGlobalNamespace makes the object unless there is another one of its name.
func (s *session) createGlobalNamespace(ctx context.Context, object *objects.Object, o gnsOptions) error {
	document, err := gnsDocument(object)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := objects.EncodeDocument(&text, "yaml", document); err != nil {
		return err
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	request := client.ApplyRequest{Manifests: []client.Manifest{{File: "command line", Content: text.String()}}, DryRun: true, User: userName()}
	response, err := c.Apply(ctx, request)
	if err != nil {
		return err
	}
	for _, r := range response.Results {
		if r.Action == client.ActionConfigured {
			return &client.Problem{Status: http.StatusConflict, What: fmt.Sprintf("there is a global namespace %q already, and it is another one", object.GetName()),
				Remedy: fmt.Sprintf("`heddle gns describe %s` shows it; change it with `heddle apply -f`, or delete it first", object.GetName())}
		}
	}
	if !o.dryRun {
		request.DryRun = false
		if response, err = c.Apply(ctx, request); err != nil {
			return err
		}
	}
	if o.output != "" {
		for _, r := range response.Results {
			s.printWarnings(r)
		}
		return objects.EncodeDocument(s.out, o.output, document)
	}
	s.printResults(response, "")
	return nil
}

// gnsDocument is the object as a manifest, without what is empty.
func gnsDocument(object *objects.Object) (map[string]any, error) {
	document, err := object.Document()
	if err != nil {
		return nil, err
	}
	if spec, ok := document["spec"].(map[string]any); ok {
		if resilience, ok := spec["resilience"].(map[string]any); ok && len(resilience) == 0 {
			delete(spec, "resilience")
		}
	}
	return document, nil
}

func (s *session) gnsDeleteCommand() *cobra.Command {
	return &cobra.Command{Use: "delete NAME...", Short: "Delete global namespaces", Args: cobra.MinimumNArgs(1),
		Long:              "Delete global namespaces. The namespaces and what runs in them stay; services of other clusters are no longer found from them.",
		Example:           "  heddle gns delete boutique",
		ValidArgsFunction: s.completeGlobalNamespaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.client()
			if err != nil {
				return err
			}
			for _, name := range args {
				err := c.Delete(cmd.Context(), objects.GlobalNamespace, "", name)
				if missing(err) {
					return &client.Problem{Status: http.StatusNotFound, What: fmt.Sprintf("there is no global namespace %q", name), Remedy: "`heddle gns get` lists them"}
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(s.out, "globalnamespace.heddle.io %q deleted\n", name)
			}
			return nil
		}}
}

// completeGlobalNamespaces completes names.
func (s *session) completeGlobalNamespaces(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	found, directive := s.completeObjects(cmd, []string{objects.GlobalNamespace.Plural}, prefix)
	return slices.DeleteFunc(found, func(name string) bool { return slices.Contains(args, name) }), directive
}
