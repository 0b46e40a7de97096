package objects

import (
	"fmt"
	"path"

	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1"
	networkingv1 "istio.io/client-go/pkg/apis/networking/v1"
)

func (c *checker) destinationRule(d *networkingv1.DestinationRule) {
	c.host("spec.host", d.Spec.Host)
	c.exportTo("spec.exportTo", d.Spec.ExportTo)
	c.labels("spec.workloadSelector.matchLabels", d.Spec.GetWorkloadSelector().GetMatchLabels())
	c.trafficPolicy("spec.trafficPolicy", d.Spec.TrafficPolicy)
	names := map[string]bool{}
	for i, s := range d.Spec.Subsets {
		at := fmt.Sprintf("spec.subsets[%d]", i)
		c.dnsLabel(at+".name", s.GetName())
		if names[s.GetName()] {
			c.fail(at+".name", fmt.Sprintf("%q is there twice", s.GetName()), "use another name")
		}
		names[s.GetName()] = true
		c.labels(at+".labels", s.GetLabels())
		c.trafficPolicy(at+".trafficPolicy", s.GetTrafficPolicy())
	}
}

func (c *checker) trafficPolicy(at string, p *networking.TrafficPolicy) {
	if p == nil {
		return
	}
	c.policy(at, p.LoadBalancer, p.ConnectionPool, p.OutlierDetection, p.Tls)
	ports := map[uint32]bool{}
	for i, s := range p.PortLevelSettings {
		sat := fmt.Sprintf("%s.portLevelSettings[%d]", at, i)
		n := s.GetPort().GetNumber()
		c.port(sat+".port.number", int64(n))
		if ports[n] {
			c.fail(sat+".port.number", fmt.Sprintf("%d is there twice", n), "remove one of the two")
		}
		ports[n] = true
		c.policy(sat, s.LoadBalancer, s.ConnectionPool, s.OutlierDetection, s.Tls)
	}
}

func (c *checker) policy(at string, lb *networking.LoadBalancerSettings, pool *networking.ConnectionPoolSettings,
	outlier *networking.OutlierDetection, tls *networking.ClientTLSSettings,
) {
	if lb.GetSimple() == networking.LoadBalancerSettings_PASSTHROUGH {
		c.fail(at+".loadBalancer.simple", "PASSTHROUGH is not supported",
			"use ROUND_ROBIN, LEAST_REQUEST or RANDOM")
	}
	if t := pool.GetTcp(); t != nil {
		c.notNegative(at+".connectionPool.tcp.maxConnections", t.MaxConnections)
		c.duration(at+".connectionPool.tcp.connectTimeout", t.ConnectTimeout)
		c.positive(at+".connectionPool.tcp.connectTimeout", t.ConnectTimeout)
		c.duration(at+".connectionPool.tcp.idleTimeout", t.IdleTimeout)
	}
	if h := pool.GetHttp(); h != nil {
		hat := at + ".connectionPool.http"
		c.notNegative(hat+".http1MaxPendingRequests", h.Http1MaxPendingRequests)
		c.notNegative(hat+".http2MaxRequests", h.Http2MaxRequests)
		c.notNegative(hat+".maxRequestsPerConnection", h.MaxRequestsPerConnection)
		c.notNegative(hat+".maxRetries", h.MaxRetries)
		c.notNegative(hat+".maxConcurrentStreams", h.MaxConcurrentStreams)
		c.duration(hat+".idleTimeout", h.IdleTimeout)
		if h.UseClientProtocol && h.H2UpgradePolicy == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE {
			c.fail(hat+".useClientProtocol", "contradicts h2UpgradePolicy: UPGRADE", "leave one of the two")
		}
	}
	if o := outlier; o != nil {
		oat := at + ".outlierDetection"
		c.duration(oat+".interval", o.Interval)
		c.positive(oat+".interval", o.Interval)
		c.duration(oat+".baseEjectionTime", o.BaseEjectionTime)
		c.positive(oat+".baseEjectionTime", o.BaseEjectionTime)
		c.percent(oat+".maxEjectionPercent", o.MaxEjectionPercent)
		c.percent(oat+".minHealthPercent", o.MinHealthPercent)
		if o.ConsecutiveLocalOriginFailures != nil && !o.SplitExternalLocalOriginErrors {
			c.fail(oat+".consecutiveLocalOriginFailures", "has no effect by itself",
				"set splitExternalLocalOriginErrors: true")
		}
	}
	c.clientTLS(at+".tls", tls)
}

func (c *checker) clientTLS(at string, t *networking.ClientTLSSettings) {
	if t == nil {
		return
	}
	files := []struct{ name, value string }{
		{"clientCertificate", t.ClientCertificate}, {"privateKey", t.PrivateKey}, {"caCertificates", t.CaCertificates},
	}
	for _, f := range files {
		allowed := t.Mode == networking.ClientTLSSettings_MUTUAL ||
			t.Mode == networking.ClientTLSSettings_SIMPLE && f.name == "caCertificates"
		switch {
		case f.value == "":
		case !allowed:
			c.fail(at+"."+f.name, "has no meaning with mode "+t.Mode.String(), "remove it")
		case !path.IsAbs(f.value):
			c.fail(at+"."+f.name, fmt.Sprintf("%q is not an absolute path", f.value), "begin it with /")
		}
	}
	if t.Mode == networking.ClientTLSSettings_MUTUAL && (t.ClientCertificate == "" || t.PrivateKey == "") {
		c.fail(at, "mode MUTUAL needs clientCertificate and privateKey",
			"name both files, or use ISTIO_MUTUAL for the mesh's own certificates")
	}
	if len(t.Sni) > 255 {
		c.fail(at+".sni", fmt.Sprintf("a name of %d bytes is longer than 255", len(t.Sni)), "shorten it")
	}
	verifies := t.Mode == networking.ClientTLSSettings_SIMPLE || t.Mode == networking.ClientTLSSettings_MUTUAL
	if t.InsecureSkipVerify != nil && !verifies {
		c.fail(at+".insecureSkipVerify", "has no meaning with mode "+t.Mode.String(), "remove it")
	}
	if t.InsecureSkipVerify.GetValue() && (t.CaCertificates != "" || len(t.SubjectAltNames) > 0) {
		c.fail(at+".insecureSkipVerify", "contradicts caCertificates and subjectAltNames", "leave one of them")
	}
	if t.Mode == networking.ClientTLSSettings_DISABLE && (t.Sni != "" || len(t.SubjectAltNames) > 0) {
		c.fail(at, "mode DISABLE has neither sni nor subjectAltNames", "remove them")
	}
}

func (c *checker) notNegative(path string, v int32) {
	if v < 0 {
		c.fail(path, fmt.Sprintf("%d is negative", v), "use 1 or more, or leave it out")
	}
}

func (c *checker) percent(path string, v int32) {
	if v < 0 || v > 100 {
		c.fail(path, fmt.Sprintf("%d is not a percentage", v), "use 0 to 100")
	}
}

func (c *checker) positive(path string, d *durationpb.Duration) {
	if d != nil && d.AsDuration().Milliseconds() < 1 && d.AsDuration() >= 0 {
		c.fail(path, "is below 1ms", "use at least 1ms")
	}
}
