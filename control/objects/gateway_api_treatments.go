package objects

const noParameters = "remove it; Heddle's gateways take no parameters there"

// gatewayAPITreatments say what becomes of the fields of Gateway API v1.6.3, experimental ones included.
var gatewayAPITreatments = map[string]fields{
	"v1.GatewayClassSpec": {
		translated: []string{"controllerName", "description"},
		refused:    map[string]string{"parametersRef": noParameters},
	},
	"v1.GatewaySpec": {
		translated: []string{"gatewayClassName", "listeners", "addresses"},
		refused: map[string]string{
			"infrastructure":   "remove it; nothing is made for a Gateway, it is served by gateways that run already",
			"allowedListeners": later + "ListenerSets; write the listeners into the Gateway",
			"tls":              "for client certificates use an Istio Gateway with tls.mode MUTUAL, towards backends a DestinationRule",
			"defaultScope":     later + "default Gateways; name the Gateway in parentRefs",
		},
	},
	"v1.GatewaySpecAddress": {translated: []string{"type", "value"}},
	"v1.Listener":           {translated: []string{"name", "hostname", "port", "protocol", "tls", "allowedRoutes"}},
	"v1.ListenerTLSConfig": {
		translated: []string{"mode", "certificateRefs"},
		refused:    map[string]string{"options": "for versions and cipher suites use an Istio Gateway"},
	},
	"v1.AllowedRoutes":   {translated: []string{"namespaces", "kinds"}},
	"v1.RouteNamespaces": {translated: []string{"from", "selector"}},
	"v1.RouteGroupKind":  {translated: []string{"group", "kind"}},

	"v1.SecretObjectReference": {translated: []string{"group", "kind", "name", "namespace"}},

	"v1.HTTPRouteSpec": {translated: []string{"hostnames", "rules"}},
	"v1.GRPCRouteSpec": {translated: []string{"hostnames", "rules"}},
	"v1.TLSRouteSpec":  {translated: []string{"hostnames", "rules"}},
	"v1.TCPRouteSpec":  {translated: []string{"rules"}},
	"v1.CommonRouteSpec": {
		translated: []string{"parentRefs"},
		refused:    map[string]string{"useDefaultGateways": noDefaultGateways},
	},
	"v1.ParentReference": {translated: []string{"group", "kind", "namespace", "name", "sectionName", "port"}},

	"v1.HTTPRouteRule": {
		translated: []string{"name", "matches", "filters", "backendRefs", "timeouts", "retry"},
		refused:    map[string]string{"sessionPersistence": noSessions},
	},
	"v1.HTTPRouteMatch":      {translated: []string{"path", "headers", "queryParams", "method"}},
	"v1.HTTPPathMatch":       {translated: []string{"type", "value"}},
	"v1.HTTPHeaderMatch":     {translated: []string{"type", "name", "value"}},
	"v1.HTTPQueryParamMatch": {translated: []string{"type", "name", "value"}},
	"v1.HTTPRouteTimeouts":   {translated: []string{"request", "backendRequest"}},
	"v1.HTTPRouteRetry":      {translated: []string{"codes", "attempts", "backoff"}},
	"v1.HTTPRouteFilter": {
		translated: []string{
			"type", "requestHeaderModifier", "responseHeaderModifier", "requestMirror", "requestRedirect", "urlRewrite", "cors",
		},
		refused: map[string]string{
			"externalAuth": "use an AuthorizationPolicy with action CUSTOM",
			"extensionRef": later + "filters of its own kinds",
		},
	},
	"v1.HTTPHeaderFilter":          {translated: []string{"set", "add", "remove"}},
	"v1.HTTPHeader":                {translated: []string{"name", "value"}},
	"v1.HTTPRequestMirrorFilter":   {translated: []string{"backendRef", "percent", "fraction"}},
	"v1.Fraction":                  {translated: []string{"numerator", "denominator"}},
	"v1.HTTPRequestRedirectFilter": {translated: []string{"scheme", "hostname", "path", "port", "statusCode"}},
	"v1.HTTPURLRewriteFilter":      {translated: []string{"hostname", "path"}},
	"v1.HTTPPathModifier":          {translated: []string{"type", "replaceFullPath", "replacePrefixMatch"}},
	"v1.HTTPCORSFilter": {translated: []string{
		"allowOrigins", "allowCredentials", "allowMethods", "allowHeaders", "exposeHeaders", "maxAge",
	}},
	"v1.HTTPBackendRef":         {translated: []string{"filters"}},
	"v1.GRPCBackendRef":         {translated: []string{"filters"}},
	"v1.BackendRef":             {translated: []string{"weight"}},
	"v1.BackendObjectReference": {translated: []string{"group", "kind", "name", "namespace", "port"}},

	"v1.GRPCRouteRule": {
		translated: []string{"name", "matches", "filters", "backendRefs"},
		refused:    map[string]string{"sessionPersistence": noSessions},
	},
	"v1.GRPCRouteMatch":  {translated: []string{"method", "headers"}},
	"v1.GRPCMethodMatch": {translated: []string{"type", "service", "method"}},
	"v1.GRPCHeaderMatch": {translated: []string{"type", "name", "value"}},
	"v1.GRPCRouteFilter": {
		translated: []string{"type", "requestHeaderModifier", "responseHeaderModifier", "requestMirror"},
		refused:    map[string]string{"extensionRef": later + "filters of its own kinds"},
	},
	"v1.TLSRouteRule": {translated: []string{"name", "backendRefs"}},
	"v1.TCPRouteRule": {translated: []string{"name", "backendRefs"}},

	"v1.ReferenceGrantSpec": {translated: []string{"from", "to"}},
	"v1.ReferenceGrantFrom": {translated: []string{"group", "kind", "namespace"}},
	"v1.ReferenceGrantTo":   {translated: []string{"group", "kind", "name"}},

	"v1.BackendTLSPolicySpec": {
		translated: []string{"targetRefs", "validation"},
		refused:    map[string]string{"options": "remove it; Heddle has no options of its own there"},
	},
	"v1.LocalPolicyTargetReferenceWithSectionName": {translated: []string{"sectionName"}},
	"v1.LocalPolicyTargetReference":                {translated: []string{"group", "kind", "name"}},
	"v1.BackendTLSPolicyValidation": {translated: []string{
		"caCertificateRefs", "wellKnownCACertificates", "hostname", "subjectAltNames",
	}},
	"v1.LocalObjectReference": {translated: []string{"group", "kind", "name"}},
	"v1.SubjectAltName":       {translated: []string{"type", "hostname", "uri"}},
}

const (
	noDefaultGateways = later + "default Gateways; name the Gateway in parentRefs"
	noSessions        = later + "affinity of clients to endpoints"
)
