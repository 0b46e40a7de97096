package resolve

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/features"

	"heddle.io/heddle/control/objects"
)

// supportedFeatures are what GatewayClasses of Heddle say that they support, by what is translated (test/scenarios) and the proxy
// does: the API's own conformance suite needs Kubernetes, and has not been run. Not among them is what is refused, or what needs more of the proxy or of the mesh than there is: addresses of a Gateway's own, infrastructure, client
// certificates by spec.tls, ListenerSets, UDP, retries after a backend's timeout, misdirected requests,
// routes by a Service's address whatever the host.
var supportedFeatures = []features.FeatureName{
	features.SupportGateway, features.SupportGatewayPort8080, features.SupportGatewayHTTPListenerIsolation,
	features.SupportReferenceGrant, features.SupportBackendTLSPolicy, features.SupportBackendTLSPolicySANValidation,
	features.SupportHTTPRoute, features.SupportHTTPRouteBackendRequestHeaderModification, features.SupportHTTPRouteQueryParamMatching,
	features.SupportHTTPRouteMethodMatching, features.SupportHTTPRouteResponseHeaderModification, features.SupportHTTPRoutePortRedirect,
	features.SupportHTTPRouteSchemeRedirect, features.SupportHTTPRoutePathRedirect, features.SupportHTTPRouteHostRewrite,
	features.SupportHTTPRoutePathRewrite, features.SupportHTTPRouteRequestMirror, features.SupportHTTPRouteRequestMultipleMirrors,
	features.SupportHTTPRouteRequestPercentageMirror, features.SupportHTTPRouteRequestTimeout, features.SupportHTTPRouteBackendTimeout,
	features.SupportHTTPRouteParentRefPort, features.SupportHTTPRouteBackendProtocolH2C, features.SupportHTTPRouteBackendProtocolWebSocket,
	features.SupportHTTPRouteNamedRouteRule, features.SupportHTTPRouteCORS, features.SupportHTTPRoute303RedirectStatusCode, features.SupportHTTPRoute307RedirectStatusCode,
	features.SupportHTTPRoute308RedirectStatusCode, features.SupportHTTPRouteRetry, features.SupportHTTPRouteRetryConnectionError,
	features.SupportGRPCRoute, features.SupportGRPCRouteNamedRouteRule,
	features.SupportTLSRoute, features.SupportTLSRouteModeTerminate, features.SupportTLSRouteModeMixed, features.SupportTCPRoute,
	features.SupportMesh, features.SupportMeshConsumerRoute, features.SupportMeshHTTPRouteRewritePath, features.SupportMeshHTTPRouteSchemeRedirect,
	features.SupportMeshHTTPRouteRedirectPort, features.SupportMeshHTTPRouteRedirectPath, features.SupportMeshHTTPRouteBackendRequestHeaderModification,
	features.SupportMeshHTTPRouteQueryParamMatching, features.SupportMeshHTTPRouteNamedRouteRule,
}

// addClass completes the status of a GatewayClass of Heddle's.
func addClass(g *gatewayv1.GatewayClass, to *objects.Status) {
	if g.Spec.ControllerName != objects.GatewayController {
		return
	}
	to.Conditions = append(to.Conditions, metav1.Condition{
		Type: string(gatewayv1.GatewayClassConditionStatusSupportedVersion), Status: metav1.ConditionTrue, ObservedGeneration: g.GetGeneration(),
		Reason: string(gatewayv1.GatewayClassReasonSupportedVersion), Message: "its kinds are those of Gateway API v1.6.3",
	})
	to.SupportedFeatures = sortedFeatures
}

// sortedFeatures are the supported ones as a status has them, by name.
var sortedFeatures = func() []gatewayv1.SupportedFeature {
	out := make([]gatewayv1.SupportedFeature, 0, len(supportedFeatures))
	for _, f := range supportedFeatures {
		out = append(out, gatewayv1.SupportedFeature{Name: gatewayv1.FeatureName(f)})
	}
	slices.SortFunc(out, func(a, b gatewayv1.SupportedFeature) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return out
}()
