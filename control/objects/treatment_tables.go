package objects

// The tables of this file say, field by field, what Heddle does with what users write.

const (
	later     = "remove it; this version of Heddle has no "
	useSecret = "put the certificate into a Secret and name it in credentialName"
	byAddress = "match by host, port or labels instead"
)

var coreTreatments = map[string]fields{
	"v1.ServiceAccount": {
		translated: []string{},
		ignored: map[string]string{
			"secrets":                      "identities are certificates, given by the mesh",
			"imagePullSecrets":             "workloads are programs of this host, not images",
			"automountServiceAccountToken": "no tokens are mounted",
		},
	},
	"v1.Secret": {ignored: map[string]string{"immutable": "the secret can still be changed"}},
	"v1.ConfigMap": {
		ignored: map[string]string{"immutable": "the configuration can still be changed"},
		refused: map[string]string{"binaryData": "write text into data"},
	},
	"v1.NamespaceSpec": {ignored: map[string]string{
		"finalizers": "a namespace is deleted at once",
	}},
	"v1.ServiceSpec": {
		translated: []string{"ports", "selector", "clusterIP", "type", "sessionAffinity"},
		ignored: map[string]string{
			"clusterIPs":            "the service has one address, clusterIP",
			"ipFamilies":            "services have one address, of the cluster's family",
			"ipFamilyPolicy":        "services have one address, of the cluster's family",
			"internalTrafficPolicy": "traffic goes to all ready endpoints",
		},
		refused: map[string]string{
			"externalIPs":                   "use a Gateway for what comes from outside",
			"sessionAffinityConfig":         later + "affinity of clients to endpoints",
			"loadBalancerIP":                "use a Gateway for what comes from outside",
			"loadBalancerSourceRanges":      "use an AuthorizationPolicy with ipBlocks",
			"externalName":                  later + "names for hosts outside the mesh",
			"externalTrafficPolicy":         "use a Gateway for what comes from outside",
			"healthCheckNodePort":           "use a Gateway for what comes from outside",
			"publishNotReadyAddresses":      later + "traffic to endpoints that are not ready",
			"allocateLoadBalancerNodePorts": "use a Gateway for what comes from outside",
			"loadBalancerClass":             "use a Gateway for what comes from outside",
			"trafficDistribution":           later + "preference by distance",
		},
	},
	"v1.ServicePort": {
		translated: []string{"name", "protocol", "appProtocol", "port", "targetPort"},
		refused:    map[string]string{"nodePort": "use a Gateway for what comes from outside"},
	},
}

var heddleTreatments = map[string]fields{
	"v1alpha1.WorkloadSpec": {translated: []string{
		"cluster", "replicas", "serviceAccount", "command", "args", "env", "user", "capabilities", "ports", "readiness", "resources",
		"restart",
	}},
	"v1alpha1.EnvVar":       {translated: []string{"name", "value"}},
	"v1alpha1.WorkloadPort": {translated: []string{"name", "port", "protocol"}},
	"v1alpha1.Readiness": {translated: []string{
		"tcp", "http", "grpc", "initialDelaySeconds", "periodSeconds", "timeoutSeconds", "successThreshold",
		"failureThreshold",
	}},
	"v1alpha1.TCPProbe":          {translated: []string{"port"}},
	"v1alpha1.HTTPProbe":         {translated: []string{"port", "path"}},
	"v1alpha1.GRPCProbe":         {translated: []string{"port", "service"}},
	"v1alpha1.Resources":         {translated: []string{"cpu", "memory"}},
	"v1alpha1.ClusterSpec":       {translated: []string{"primary", "key", "joined"}},
	"v1alpha1.AccessBindingSpec": {translated: []string{"role", "namespaces", "subjects"}},
	"v1alpha1.AccessSubject":     {translated: []string{"kind", "name", "namespace"}},
	"v1alpha1.GlobalNamespaceSpec": {translated: []string{
		"domain", "mappings", "externalServices", "publicServices", "defaultDeny", "resilience",
	}},
	"v1alpha1.NamespaceMapping": {translated: []string{"cluster", "namespace"}},
	"v1alpha1.ExternalService":  {translated: []string{"name", "hosts", "ports"}},
	"v1alpha1.ExternalPort":     {translated: []string{"name", "port", "targetPort", "tls"}},
	"v1alpha1.PublicService":    {translated: []string{"service", "port", "host", "credentialName"}},
	"v1alpha1.Resilience":       {translated: []string{"localityFailover", "outlierDetection"}},
	"v1alpha1.OutlierDetection": {translated: []string{
		"consecutiveErrors", "interval", "baseEjectionTime", "maxEjectionPercent",
	}},
}

var gatewayTreatments = map[string]fields{
	"istio.networking.v1alpha3.Gateway": {translated: []string{"servers", "selector"}},
	"istio.networking.v1alpha3.Server": {
		translated: []string{"port", "hosts", "tls", "name"},
		ignored:    map[string]string{"defaultEndpoint": "Istio has not implemented it either"},
		refused:    map[string]string{"bind": "gateways listen where `heddle up` was told to"},
	},
	"istio.networking.v1alpha3.Port": {
		translated: []string{"number", "protocol", "name"},
		ignored:    map[string]string{"targetPort": "deprecated and unused in Istio as well"},
	},
	"istio.networking.v1alpha3.ServerTLSSettings": {
		translated: []string{
			"httpsRedirect", "mode", "credentialName", "subjectAltNames", "minProtocolVersion", "maxProtocolVersion",
			"cipherSuites",
		},
		refused: map[string]string{
			"serverCertificate":     useSecret,
			"privateKey":            useSecret,
			"caCertificates":        useSecret + " (key ca.crt)",
			"caCrl":                 later + "revocation lists",
			"credentialNames":       "use credentialName with one certificate",
			"caCertCredentialName":  "put the authority into the secret of credentialName as ca.crt",
			"tlsCertificates":       useSecret,
			"verifyCertificateSpki": "use subjectAltNames",
			"verifyCertificateHash": "use subjectAltNames",
			"insecureSkipVerify":    "use mode SIMPLE when client certificates are not to be verified",
		},
	},
	"istio.networking.v1alpha3.ServerTLSSettings.TLSCertificate": {refused: map[string]string{
		"serverCertificate": useSecret, "privateKey": useSecret, "caCertificates": useSecret,
	}},
}

var virtualServiceTreatments = map[string]fields{
	"istio.networking.v1alpha3.VirtualService": {
		translated: []string{"hosts", "gateways", "http", "tcp", "exportTo"},
		refused:    map[string]string{"tls": later + "routing of TLS by server name; use http or tcp routes"},
	},
	"istio.networking.v1alpha3.HTTPRoute": {
		translated: []string{
			"name", "match", "route", "redirect", "directResponse", "rewrite", "timeout", "retries", "headers",
			"fault", "corsPolicy", "mirror", "mirrors", "mirrorPercent", "mirrorPercentage",
		},
		refused: map[string]string{"delegate": "write the routes into this VirtualService"},
	},
	"istio.networking.v1alpha3.HTTPMatchRequest": {
		translated: []string{
			"name", "uri", "scheme", "method", "authority", "headers", "port", "sourceLabels", "gateways",
			"queryParams", "ignoreUriCase", "withoutHeaders", "sourceNamespace",
		},
		ignored: map[string]string{"statPrefix": "routes have no statistics of their own"},
	},
	"istio.networking.v1alpha3.StringMatch": {translated: []string{"exact", "prefix", "regex"}},
	"istio.networking.v1alpha3.HTTPRouteDestination": {
		translated: []string{"destination", "weight", "headers"},
	},
	"istio.networking.v1alpha3.Destination":  {translated: []string{"host", "subset", "port"}},
	"istio.networking.v1alpha3.PortSelector": {translated: []string{"number"}},
	"istio.networking.v1alpha3.Headers":      {translated: []string{"request", "response"}},
	"istio.networking.v1alpha3.Headers.HeaderOperations": {
		translated: []string{"set", "add", "remove"},
	},
	"istio.networking.v1alpha3.HTTPRedirect": {
		translated: []string{"uri", "authority", "port", "scheme", "redirectCode", "prefixRewrite"},
		refused:    map[string]string{"derivePort": "set port"},
	},
	"istio.networking.v1alpha3.HTTPDirectResponse": {translated: []string{"status", "body"}},
	"istio.networking.v1alpha3.HTTPBody":           {translated: []string{"string", "bytes"}},
	"istio.networking.v1alpha3.Delegate": {refused: map[string]string{
		"name": "write the routes into this VirtualService", "namespace": "write the routes into this VirtualService",
	}},
	"istio.networking.v1alpha3.HTTPRewrite": {
		translated: []string{"uri", "authority", "uriRegexRewrite"},
	},
	"istio.networking.v1alpha3.RegexRewrite": {translated: []string{"match", "rewrite"}},
	"istio.networking.v1alpha3.HTTPRetry": {
		translated: []string{"attempts", "perTryTimeout", "retryOn", "retryIgnorePreviousHosts", "backoff"},
		refused:    map[string]string{"retryRemoteLocalities": later + "localities"},
	},
	"istio.networking.v1alpha3.HTTPFaultInjection": {translated: []string{"delay", "abort"}},
	"istio.networking.v1alpha3.HTTPFaultInjection.Delay": {
		translated: []string{"percent", "fixedDelay", "percentage"},
		refused:    map[string]string{"exponentialDelay": "use fixedDelay; Istio has not implemented it either"},
	},
	"istio.networking.v1alpha3.HTTPFaultInjection.Abort": {
		translated: []string{"httpStatus", "grpcStatus", "percentage"},
		refused:    map[string]string{"http2Error": "use httpStatus or grpcStatus; Istio has not implemented it either"},
	},
	"istio.networking.v1alpha3.Percent":          {translated: []string{"value"}},
	"istio.networking.v1alpha3.HTTPMirrorPolicy": {translated: []string{"destination", "percentage"}},
	"istio.networking.v1alpha3.CorsPolicy": {translated: []string{
		"allowOrigin", "allowOrigins", "allowMethods", "allowHeaders", "exposeHeaders", "maxAge", "allowCredentials",
		"unmatchedPreflights",
	}},
	"istio.networking.v1alpha3.TLSRoute": {refused: map[string]string{
		"match": later + "routing of TLS by server name", "route": later + "routing of TLS by server name",
	}},
	"istio.networking.v1alpha3.TLSMatchAttributes": {refused: map[string]string{
		"sniHosts": later + "routing of TLS", "destinationSubnets": byAddress, "port": later + "routing of TLS",
		"sourceLabels": later + "routing of TLS", "gateways": later + "routing of TLS",
		"sourceNamespace": later + "routing of TLS",
	}},
	"istio.networking.v1alpha3.RouteDestination": {translated: []string{"destination", "weight"}},
	"istio.networking.v1alpha3.TCPRoute":         {translated: []string{"match", "route"}},
	"istio.networking.v1alpha3.L4MatchAttributes": {
		translated: []string{"port", "sourceLabels", "gateways", "sourceNamespace"},
		refused:    map[string]string{"destinationSubnets": byAddress, "sourceSubnet": byAddress},
	},
}

var destinationRuleTreatments = map[string]fields{
	"istio.networking.v1alpha3.DestinationRule": {
		translated: []string{"host", "trafficPolicy", "subsets", "exportTo", "workloadSelector"},
	},
	"istio.networking.v1alpha3.TrafficPolicy": {
		translated: []string{"loadBalancer", "connectionPool", "outlierDetection", "tls", "portLevelSettings"},
		refused: map[string]string{
			"tunnel":        later + "tunnels by CONNECT",
			"proxyProtocol": later + "PROXY protocol towards services",
			"retryBudget":   "bound retries with connectionPool.http.maxRetries",
		},
	},
	"istio.networking.v1alpha3.LoadBalancerSettings": {
		translated: []string{"simple"},
		refused: map[string]string{
			"consistentHash":     later + "consistent hashing",
			"localityLbSetting":  later + "balancing by locality",
			"zoneAwareLbSetting": later + "balancing by zone",
			"warmupDurationSecs": later + "slow start",
			"warmup":             later + "slow start",
		},
	},
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB": {refused: map[string]string{
		"httpHeaderName": later + "consistent hashing", "httpCookie": later + "consistent hashing",
		"useSourceIp": later + "consistent hashing", "httpQueryParameterName": later + "consistent hashing",
		"ringHash": later + "consistent hashing", "maglev": later + "consistent hashing",
		"minimumRingSize": later + "consistent hashing",
	}},
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.HTTPCookie": {refused: map[string]string{
		"name": later + "consistent hashing", "path": later + "consistent hashing",
		"ttl": later + "consistent hashing", "attributes": later + "consistent hashing",
	}},
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.HTTPCookie.Attribute": {
		refused: map[string]string{"name": later + "consistent hashing", "value": later + "consistent hashing"},
	},
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.RingHash": {
		refused: map[string]string{"minimumRingSize": later + "consistent hashing"},
	},
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.MagLev": {
		refused: map[string]string{"tableSize": later + "consistent hashing"},
	},
	"istio.networking.v1alpha3.LocalityLoadBalancerSetting": {refused: map[string]string{
		"distribute": later + "balancing by locality", "failover": later + "balancing by locality",
		"failoverPriority": later + "balancing by locality", "enabled": later + "balancing by locality",
	}},
	"istio.networking.v1alpha3.LocalityLoadBalancerSetting.Distribute": {refused: map[string]string{
		"from": later + "balancing by locality", "to": later + "balancing by locality",
	}},
	"istio.networking.v1alpha3.LocalityLoadBalancerSetting.Failover": {refused: map[string]string{
		"from": later + "balancing by locality", "to": later + "balancing by locality",
	}},
	"istio.networking.v1alpha3.ZoneAwareLoadBalancerSetting": {refused: map[string]string{
		"enabled": later + "balancing by zone", "failover": later + "balancing by zone",
		"failoverPriority": later + "balancing by zone", "minClusterSize": later + "balancing by zone",
	}},
	"istio.networking.v1alpha3.ZoneAwareLoadBalancerSetting.Failover": {refused: map[string]string{
		"from": later + "balancing by zone", "to": later + "balancing by zone",
	}},
	"istio.networking.v1alpha3.WarmupConfiguration": {refused: map[string]string{
		"duration": later + "slow start", "minimumPercent": later + "slow start", "aggression": later + "slow start",
	}},
	"istio.networking.v1alpha3.ConnectionPoolSettings": {translated: []string{"tcp", "http"}},
	"istio.networking.v1alpha3.ConnectionPoolSettings.TCPSettings": {
		translated: []string{"maxConnections", "connectTimeout", "idleTimeout"},
		ignored:    map[string]string{"tcpKeepalive": "connections keep the kernel's settings"},
		refused:    map[string]string{"maxConnectionDuration": later + "bound on a connection's age"},
	},
	"istio.networking.v1alpha3.ConnectionPoolSettings.TCPSettings.TcpKeepalive": {ignored: map[string]string{
		"probes": "connections keep the kernel's settings", "time": "connections keep the kernel's settings",
		"interval": "connections keep the kernel's settings",
	}},
	"istio.networking.v1alpha3.ConnectionPoolSettings.HTTPSettings": {
		translated: []string{
			"http1MaxPendingRequests", "http2MaxRequests", "maxRequestsPerConnection", "maxRetries", "idleTimeout",
			"h2UpgradePolicy", "useClientProtocol", "maxConcurrentStreams",
		},
		refused: map[string]string{"http2KeepAlive": later + "HTTP/2 pings"},
	},
	"istio.networking.v1alpha3.ConnectionPoolSettings.HTTPSettings.ConnectionKeepalive": {
		refused: map[string]string{"interval": later + "HTTP/2 pings", "timeout": later + "HTTP/2 pings"},
	},
	"istio.networking.v1alpha3.OutlierDetection": {
		translated: []string{
			"splitExternalLocalOriginErrors", "consecutiveLocalOriginFailures", "consecutiveGatewayErrors",
			"consecutive5xxErrors", "interval", "baseEjectionTime", "maxEjectionPercent", "minHealthPercent",
		},
		refused: map[string]string{
			"consecutiveErrors":              "deprecated: use consecutive5xxErrors or consecutiveGatewayErrors",
			"outlierDetectionHttpErrorCodes": "use consecutive5xxErrors or consecutiveGatewayErrors",
		},
	},
	"istio.networking.v1alpha3.ClientTLSSettings": {
		translated: []string{
			"mode", "clientCertificate", "privateKey", "caCertificates", "subjectAltNames", "sni",
			"insecureSkipVerify",
		},
		refused: map[string]string{
			"credentialName": "name files in clientCertificate, privateKey and caCertificates",
			"caCrl":          later + "revocation lists",
		},
	},
	"istio.networking.v1alpha3.TrafficPolicy.PortTrafficPolicy": {
		translated: []string{"port", "loadBalancer", "connectionPool", "outlierDetection", "tls"},
	},
	"istio.networking.v1alpha3.TrafficPolicy.TunnelSettings": {refused: map[string]string{
		"protocol": later + "tunnels", "targetHost": later + "tunnels", "targetPort": later + "tunnels",
	}},
	"istio.networking.v1alpha3.TrafficPolicy.ProxyProtocol": {refused: map[string]string{
		"version": later + "PROXY protocol towards services",
	}},
	"istio.networking.v1alpha3.TrafficPolicy.RetryBudget": {refused: map[string]string{
		"percent": later + "retry budget", "minRetryConcurrency": later + "retry budget",
		"budgetInterval": later + "retry budget",
	}},
	"istio.networking.v1alpha3.Subset":           {translated: []string{"name", "labels", "trafficPolicy"}},
	"istio.networking.v1alpha3.WorkloadSelector": {translated: []string{"labels"}},
	"istio.type.v1beta1.WorkloadSelector": {
		translated: []string{"matchLabels"},
	},
}

var securityTreatments = map[string]fields{
	"istio.security.v1beta1.PeerAuthentication": {translated: []string{"selector", "mtls", "portLevelMtls"}},
	"istio.security.v1beta1.PeerAuthentication.MutualTLS": {
		translated: []string{"mode"},
	},
	"istio.security.v1beta1.AuthorizationPolicy": {
		translated: []string{"selector", "rules", "action", "provider"},
		refused: map[string]string{
			"targetRef":  "use selector",
			"targetRefs": "use selector",
		},
	},
	"istio.security.v1beta1.AuthorizationPolicy.ExtensionProvider": {translated: []string{"name"}},
	// Policies refuse the field that holds it.
	"istio.type.v1beta1.PolicyTargetReference": {translated: []string{"group", "kind", "name", "namespace"}},
	"istio.security.v1beta1.RequestAuthentication": {
		translated: []string{"selector", "jwtRules"},
		refused: map[string]string{
			"targetRef":  "use selector",
			"targetRefs": "use selector",
		},
	},
	"istio.security.v1beta1.JWTRule": {
		translated: []string{
			"issuer", "audiences", "jwks", "jwksUri", "timeout", "fromHeaders", "fromParams", "fromCookies", "outputPayloadToHeader",
			"forwardOriginalToken", "outputClaimToHeaders", "spaceDelimitedClaims",
		},
	},
	"istio.security.v1beta1.JWTHeader":     {translated: []string{"name", "prefix"}},
	"istio.security.v1beta1.ClaimToHeader": {translated: []string{"header", "claim"}},
	"istio.security.v1beta1.Rule":          {translated: []string{"from", "to", "when"}},
	"istio.security.v1beta1.Rule.From":     {translated: []string{"source"}},
	"istio.security.v1beta1.Source": {
		translated: []string{
			"principals", "notPrincipals", "requestPrincipals", "notRequestPrincipals", "namespaces", "notNamespaces", "serviceAccounts", "notServiceAccounts",
			"ipBlocks", "notIpBlocks", "remoteIpBlocks", "notRemoteIpBlocks",
		},
		refused: map[string]string{
			"trustDomains":    `use principals, for example "other.domain/*"`,
			"notTrustDomains": `use notPrincipals, for example "other.domain/*"`,
		},
	},
	"istio.security.v1beta1.Rule.To": {translated: []string{"operation"}},
	"istio.security.v1beta1.Operation": {translated: []string{
		"hosts", "notHosts", "ports", "notPorts", "methods", "notMethods", "paths", "notPaths",
	}},
	"istio.security.v1beta1.Condition": {translated: []string{"key", "values", "notValues"}},
}
