package objects

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
	networkingv1alpha3 "istio.io/client-go/pkg/apis/networking/v1alpha3"
	securityv1 "istio.io/client-go/pkg/apis/security/v1"
	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"heddle.io/heddle/api/v1alpha1"
)

// Groups of the kinds below.
const (
	GroupCore       = ""
	GroupNetworking = "networking.istio.io"
	GroupSecurity   = "security.istio.io"
	GroupGatewayAPI = gatewayv1.GroupName
	GroupHeddle     = v1alpha1.Group
)

// The kinds, by name, for code that needs one of them.
var (
	Namespace      = coreKind("Namespace", "namespaces", false, func() Resource { return &corev1.Namespace{} }, "ns")
	Service        = coreKind("Service", "services", true, func() Resource { return &corev1.Service{} }, "svc")
	ServiceAccount = coreKind("ServiceAccount", "serviceaccounts", true,
		func() Resource { return &corev1.ServiceAccount{} }, "sa")
	Secret    = coreKind("Secret", "secrets", true, func() Resource { return &corev1.Secret{} })
	ConfigMap = coreKind("ConfigMap", "configmaps", true, func() Resource { return &corev1.ConfigMap{} }, "cm")

	Gateway = networkingKind("Gateway", "gateways", func() Resource { return &networkingv1.Gateway{} }, "gw")

	VirtualService = networkingKind("VirtualService", "virtualservices",
		func() Resource { return &networkingv1.VirtualService{} }, "vs")
	DestinationRule = networkingKind("DestinationRule", "destinationrules",
		func() Resource { return &networkingv1.DestinationRule{} }, "dr")

	ServiceEntry = networkingKind("ServiceEntry", "serviceentries",
		func() Resource { return &networkingv1.ServiceEntry{} }, "se")
	WorkloadEntry = networkingKind("WorkloadEntry", "workloadentries",
		func() Resource { return &networkingv1.WorkloadEntry{} }, "we")
	WorkloadGroup = networkingKind("WorkloadGroup", "workloadgroups",
		func() Resource { return &networkingv1.WorkloadGroup{} }, "wg")
	Sidecar     = networkingKind("Sidecar", "sidecars", func() Resource { return &networkingv1.Sidecar{} })
	EnvoyFilter = &Kind{
		Group: GroupNetworking, Version: "v1alpha3", Versions: []string{"v1alpha3"}, Kind: "EnvoyFilter", Plural: "envoyfilters",
		Short: []string{"ef"}, Namespaced: true, New: func() Resource { return &networkingv1alpha3.EnvoyFilter{} },
	}

	GatewayClass = gatewayAPIKind("GatewayClass", "gatewayclasses", false,
		func() Resource { return &gatewayv1.GatewayClass{} }, []string{"v1", "v1beta1"}, "gc")
	// KubernetesGateway is Gateway API's Gateway, which has the name of Istio's kind.
	KubernetesGateway = gatewayAPIKind("Gateway", "gateways", true,
		func() Resource { return &gatewayv1.Gateway{} }, []string{"v1", "v1beta1"}, "gtw")
	HTTPRoute = gatewayAPIKind("HTTPRoute", "httproutes", true,
		func() Resource { return &gatewayv1.HTTPRoute{} }, []string{"v1", "v1beta1"})
	GRPCRoute = gatewayAPIKind("GRPCRoute", "grpcroutes", true,
		func() Resource { return &gatewayv1.GRPCRoute{} }, []string{"v1", "v1alpha2"})
	TLSRoute = gatewayAPIKind("TLSRoute", "tlsroutes", true,
		func() Resource { return &gatewayv1.TLSRoute{} }, []string{"v1", "v1alpha3", "v1alpha2"})
	TCPRoute = gatewayAPIKind("TCPRoute", "tcproutes", true,
		func() Resource { return &gatewayv1.TCPRoute{} }, []string{"v1", "v1alpha2"})
	ReferenceGrant = gatewayAPIKind("ReferenceGrant", "referencegrants", true,
		func() Resource { return &gatewayv1.ReferenceGrant{} }, []string{"v1", "v1beta1"}, "refgrant")
	BackendTLSPolicy = gatewayAPIKind("BackendTLSPolicy", "backendtlspolicies", true,
		func() Resource { return &gatewayv1.BackendTLSPolicy{} }, []string{"v1", "v1alpha3"}, "btlspolicy")

	PeerAuthentication = securityKind("PeerAuthentication", "peerauthentications",
		func() Resource { return &securityv1.PeerAuthentication{} }, "pa")
	AuthorizationPolicy = securityKind("AuthorizationPolicy", "authorizationpolicies",
		func() Resource { return &securityv1.AuthorizationPolicy{} }, "ap")
	RequestAuthentication = securityKind("RequestAuthentication", "requestauthentications",
		func() Resource { return &securityv1.RequestAuthentication{} }, "ra")

	Workload = heddleKind("Workload", "workloads", true, func() Resource { return &v1alpha1.Workload{} }, "wl")

	Cluster         = heddleKind("Cluster", "clusters", false, func() Resource { return &v1alpha1.Cluster{} }, "cl")
	GlobalNamespace = heddleKind("GlobalNamespace", "globalnamespaces", false,
		func() Resource { return &v1alpha1.GlobalNamespace{} }, "gns")

	AccessBinding = heddleKind("AccessBinding", "accessbindings", false,
		func() Resource { return &v1alpha1.AccessBinding{} }, "ab")
)

// definition is all that this package knows of a kind.
type definition struct {
	kind *Kind
	// form checks an object by itself; nil for nothing to check beyond what all kinds have in common.
	form func(*checker, Resource)
	// fields says what becomes of the fields of the kind's types.
	fields map[string]fields
	// defaults fills in what is written into stored objects; nil for nothing.
	defaults func(Resource)
	// programming says whether there are proxies that are told of objects of the kind by name.
	programming programming
}

// programming is whether the status of objects says how far proxies are with them.
type programming bool

// What is said by kinds that are [unprogrammed] takes effect through objects that name them, as endpoints, or not in proxies at
// all: no resource of a proxy comes from one, and a status would say for ever that no proxy uses it. Of Clusters and Secrets
// some do.
const (
	programmed   programming = true
	unprogrammed programming = false
)

// Programmed says whether the status of objects of the kind has the condition [ConditionProgrammed].
func (k *Kind) Programmed() bool { return bool(defined[k].programming) }

// definitions of all kinds, in the order in which a batch is shown. A new kind is its [Kind] above, a file with its form, a table
// of its fields, and a line here. What it means for the mesh is a file and a line of control/model/resolve.
var definitions = []definition{
	{Cluster, formOf((*checker).cluster), heddleTreatments, nil, unprogrammed},
	{GlobalNamespace, formOf((*checker).globalNamespace), heddleTreatments, defaultsOf(defaultGlobalNamespace), programmed},
	{AccessBinding, formOf((*checker).accessBinding), heddleTreatments, nil, unprogrammed},
	{Namespace, formOf((*checker).namespace), coreTreatments, nil, unprogrammed},
	{ServiceAccount, nil, coreTreatments, nil, unprogrammed},
	{Secret, formOf((*checker).secret), coreTreatments, defaultsOf(defaultSecret), unprogrammed},
	{ConfigMap, formOf((*checker).configMap), coreTreatments, nil, unprogrammed},
	{Service, formOf((*checker).service), coreTreatments, defaultsOf(defaultService), programmed},
	{Workload, formOf((*checker).workload), heddleTreatments, defaultsOf(defaultWorkload), unprogrammed},
	{WorkloadGroup, formOf((*checker).workloadGroup), workloadGroupTreatments, nil, unprogrammed},
	{WorkloadEntry, formOf((*checker).workloadEntry), workloadEntryTreatments, nil, unprogrammed},
	{ServiceEntry, formOf((*checker).serviceEntry), serviceEntryTreatments, nil, programmed},
	{Sidecar, formOf((*checker).sidecar), sidecarTreatments, nil, programmed},
	{Gateway, formOf((*checker).gateway), gatewayTreatments, nil, programmed},
	{VirtualService, formOf((*checker).virtualService), virtualServiceTreatments, nil, programmed},
	{DestinationRule, formOf((*checker).destinationRule), destinationRuleTreatments, nil, programmed},
	{GatewayClass, formOf((*checker).gatewayClass), gatewayAPITreatments, nil, unprogrammed},
	{KubernetesGateway, formOf((*checker).kubernetesGateway), gatewayAPITreatments, nil, programmed},
	{HTTPRoute, formOf((*checker).gatewayHTTPRoute), gatewayAPITreatments, nil, programmed},
	{GRPCRoute, formOf((*checker).gatewayGRPCRoute), gatewayAPITreatments, nil, programmed},
	{TLSRoute, formOf((*checker).gatewayTLSRoute), gatewayAPITreatments, nil, programmed},
	{TCPRoute, formOf((*checker).gatewayTCPRoute), gatewayAPITreatments, nil, programmed},
	{ReferenceGrant, formOf((*checker).referenceGrant), gatewayAPITreatments, nil, unprogrammed},
	{BackendTLSPolicy, formOf((*checker).backendTLSPolicy), gatewayAPITreatments, nil, programmed},
	{PeerAuthentication, formOf((*checker).peerAuthentication), securityTreatments, nil, programmed},
	{RequestAuthentication, formOf((*checker).requestAuthentication), securityTreatments, nil, programmed},
	{AuthorizationPolicy, formOf((*checker).authorizationPolicy), securityTreatments, nil, programmed},
	{EnvoyFilter, formOf((*checker).envoyFilter), envoyFilterTreatments, nil, programmed},
}

// Kinds are all kinds that Heddle accepts, defined what is known of each, treatments the tables of their fields by type:
// protobuf messages by full name, Go structs by package and name.
var (
	Kinds      = kindsOf(definitions)
	defined    = definedBy(definitions)
	treatments = treatmentsOf(definitions)
)

// formOf is the form check of one type of resource for any.
func formOf[R Resource](check func(*checker, R)) func(*checker, Resource) {
	return func(c *checker, r Resource) {
		if typed, ok := r.(R); ok {
			check(c, typed)
			return
		}
		c.fail("", fmt.Sprintf("is a %T inside", r), "this is a fault of Heddle; report it")
	}
}

func defaultsOf[R Resource](fill func(R)) func(Resource) {
	return func(r Resource) {
		if typed, ok := r.(R); ok {
			fill(typed)
		}
	}
}

func kindsOf(all []definition) []*Kind {
	out := make([]*Kind, 0, len(all))
	for _, d := range all {
		out = append(out, d.kind)
	}
	return out
}

func definedBy(all []definition) map[*Kind]definition {
	out := make(map[*Kind]definition, len(all))
	for _, d := range all {
		out[d.kind] = d
	}
	return out
}

func treatmentsOf(all []definition) map[string]fields {
	out := map[string]fields{}
	for _, d := range all {
		maps.Copy(out, d.fields)
	}
	return out
}

func coreKind(kind, plural string, namespaced bool, make func() Resource, short ...string) *Kind {
	return &Kind{
		Group: GroupCore, Version: "v1", Versions: []string{"v1"},
		Kind: kind, Plural: plural, Short: short, Namespaced: namespaced, New: make,
	}
}

func networkingKind(kind, plural string, make func() Resource, short ...string) *Kind {
	return &Kind{
		Group: GroupNetworking, Version: "v1", Versions: []string{"v1", "v1beta1", "v1alpha3"},
		Kind: kind, Plural: plural, Short: short, Namespaced: true, New: make,
	}
}

func securityKind(kind, plural string, make func() Resource, short ...string) *Kind {
	return &Kind{
		Group: GroupSecurity, Version: "v1", Versions: []string{"v1", "v1beta1"},
		Kind: kind, Plural: plural, Short: short, Namespaced: true, New: make,
	}
}

func gatewayAPIKind(kind, plural string, namespaced bool, make func() Resource, versions []string, short ...string) *Kind {
	return &Kind{
		Group: GroupGatewayAPI, Version: "v1", Versions: versions,
		Kind: kind, Plural: plural, Short: short, Namespaced: namespaced, New: make,
	}
}

func heddleKind(kind, plural string, namespaced bool, make func() Resource, short ...string) *Kind {
	return &Kind{
		Group: GroupHeddle, Version: v1alpha1.Version, Versions: []string{v1alpha1.Version},
		Kind: kind, Plural: plural, Short: short, Namespaced: namespaced, New: make,
	}
}

// KindOf gives the kind of that group and name, or nil.
func KindOf(group, kind string) *Kind {
	for _, k := range Kinds {
		if k.Group == group && k.Kind == kind {
			return k
		}
	}
	return nil
}

// Typed is what people type for the kind: its plural, with the group where another kind of that name comes first.
func (k *Kind) Typed() string {
	for _, other := range Kinds {
		if other == k {
			break
		}
		if other.Plural == k.Plural {
			return k.Plural + "." + k.Group
		}
	}
	return k.Plural
}

// FindKind finds a kind by what people type: kind, singular, plural or short name in any case, with or without the
// group after a dot ("vs", "virtualservices.networking.istio.io"). The error lists the kinds there are.
func FindKind(name string) (*Kind, error) {
	want := strings.ToLower(strings.TrimSpace(name))
	short, group, qualified := strings.Cut(want, ".")
	for _, k := range Kinds {
		if qualified && group != k.Group && !strings.HasSuffix(group, "."+k.Group) {
			continue
		}
		if short == strings.ToLower(k.Kind) || short == k.Plural || slices.Contains(k.Short, short) {
			return k, nil
		}
	}
	names := make([]string, 0, len(Kinds))
	for _, k := range Kinds {
		names = append(names, k.Typed())
	}
	hint := "."
	if near := Nearest(short, names); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	return nil, fmt.Errorf("there is no kind %q%s Kinds are: %s", name, hint, strings.Join(names, ", "))
}

// findVersion finds the kind that a manifest's apiVersion and kind name. Without one, the error says what is near.
func findVersion(apiVersion, kind string) (*Kind, string, string) {
	group, version, ok := strings.Cut(apiVersion, "/")
	if !ok {
		group, version = "", apiVersion
	}
	if k := KindOf(group, kind); k != nil {
		if slices.Contains(k.Versions, version) {
			return k, "", ""
		}
		return nil, fmt.Sprintf("%s has no version %q", k.Kind, apiVersion),
			"use one of " + strings.Join(k.apiVersions(), ", ")
	}
	if remedy := refusedKinds[group+"/"+kind]; remedy != "" {
		return nil, fmt.Sprintf("kind %s of %s is not supported", kind, group), remedy
	}
	all := make([]string, 0, len(Kinds))
	for _, k := range Kinds {
		if k.Kind == kind {
			return nil, fmt.Sprintf("there is no kind %s in %q", kind, apiVersion),
				"use apiVersion " + strings.Join(k.apiVersions(), " or ")
		}
		all = append(all, k.Kind)
	}
	if near := Nearest(kind, all); near != "" {
		i := slices.IndexFunc(Kinds, func(k *Kind) bool { return k.Kind == near })
		return nil, fmt.Sprintf("unknown kind %q in apiVersion %q", kind, apiVersion),
			fmt.Sprintf("did you mean %s (%s)?", near, strings.Join(Kinds[i].apiVersions(), ", "))
	}
	return nil, fmt.Sprintf("unknown kind %q in apiVersion %q", kind, apiVersion),
		"kinds are " + strings.Join(all, ", ")
}

// refusedKinds are those of Gateway API that there are not, by group and kind, with what to do instead.
var refusedKinds = map[string]string{
	GroupGatewayAPI + "/ListenerSet": later + "ListenerSets; write the listeners into the Gateway",
	GroupGatewayAPI + "/UDPRoute":    later + "UDP; HTTPRoute, GRPCRoute, TLSRoute and TCPRoute are what there is",
}

func (k *Kind) apiVersions() []string {
	if k.Group == "" {
		return k.Versions
	}
	out := make([]string, 0, len(k.Versions))
	for _, v := range k.Versions {
		out = append(out, k.Group+"/"+v)
	}
	return out
}
