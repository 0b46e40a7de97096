package objects

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	networking "istio.io/api/networking/v1"
)

func (c *checker) fault(at string, f *networking.HTTPFaultInjection) {
	if f == nil {
		return
	}
	if f.Delay == nil && f.Abort == nil {
		c.fail(at, "has neither delay nor abort", "give one, or remove it")
	}
	if d := f.Delay; d != nil {
		switch t := d.HttpDelayType.(type) {
		case nil:
			c.fail(at+".delay.fixedDelay", "missing", "give a time, such as 5s")
		case *networking.HTTPFaultInjection_Delay_FixedDelay:
			if t.FixedDelay.AsDuration() < time.Millisecond {
				c.fail(at+".delay.fixedDelay", "is below 1ms", "use at least 1ms")
			}
			c.duration(at+".delay.fixedDelay", t.FixedDelay)
		}
		c.percentage(at+".delay.percentage", d.Percentage)
		//nolint:staticcheck // Deprecated in Istio, and still read there.
		if d.Percent < 0 || d.Percent > 100 {
			c.fail(at+".delay.percent", fmt.Sprintf("%d is not a percentage", d.Percent), "use 0 to 100")
		}
	}
	if a := f.Abort; a != nil {
		c.percentage(at+".abort.percentage", a.Percentage)
		switch e := a.ErrorType.(type) {
		case *networking.HTTPFaultInjection_Abort_HttpStatus:
			if e.HttpStatus < 200 || e.HttpStatus > 599 {
				c.fail(at+".abort.httpStatus", fmt.Sprintf("%d is not a status", e.HttpStatus), "use 200 to 599")
			}
		case *networking.HTTPFaultInjection_Abort_GrpcStatus:
			var code codes.Code
			if code.UnmarshalJSON([]byte(strconv.Quote(e.GrpcStatus))) != nil || code == codes.OK {
				c.fail(at+".abort.grpcStatus", fmt.Sprintf("%q is not a status of a failed call", e.GrpcStatus),
					"use a name of gRPC's, such as UNAVAILABLE")
			}
		case nil:
			c.fail(at+".abort", "has no status", "give httpStatus or grpcStatus")
		}
	}
}

func (c *checker) mirrors(at string, r *networking.HTTPRoute) {
	if r.Mirror == nil && len(r.Mirrors) == 0 {
		return
	}
	if len(r.Route) == 0 {
		c.fail(at, "mirrors, but has no route", "remove the mirrors, or route to a destination")
	}
	if r.Mirror != nil {
		c.destination(at+".mirror", r.Mirror)
		if len(r.Mirrors) > 0 {
			c.fail(at+".mirrors", "is there beside mirror", "leave one")
		}
	}
	c.percentage(at+".mirrorPercentage", r.MirrorPercentage)
	//nolint:staticcheck // Deprecated in Istio, and still read there.
	if p := r.MirrorPercent.GetValue(); p > 100 {
		c.fail(at+".mirrorPercent", fmt.Sprintf("%d is not a percentage", p), "use 0 to 100")
	}
	for i, m := range r.Mirrors {
		path := fmt.Sprintf("%s.mirrors[%d]", at, i)
		c.destination(path+".destination", m.GetDestination())
		c.percentage(path+".percentage", m.GetPercentage())
	}
}

func (c *checker) percentage(at string, p *networking.Percent) {
	if v := p.GetValue(); math.IsNaN(v) || v < 0 || v > 100 {
		c.fail(at+".value", fmt.Sprintf("%g is not a percentage", v), "use 0 to 100")
	}
}

func (c *checker) cors(at string, p *networking.CorsPolicy) {
	if p == nil {
		return
	}
	for i, o := range p.AllowOrigins {
		c.stringMatch(fmt.Sprintf("%s.allowOrigins[%d]", at, i), o)
		if o.GetMatchType() == nil {
			c.fail(fmt.Sprintf("%s.allowOrigins[%d]", at, i), "matches nothing", "give exact, prefix or regex")
		}
	}
	corsNames(c, at+".allowMethods", p.AllowMethods)
	corsNames(c, at+".allowHeaders", p.AllowHeaders)
	corsNames(c, at+".exposeHeaders", p.ExposeHeaders)
	c.duration(at+".maxAge", p.MaxAge)
	if p.MaxAge.GetNanos() != 0 {
		c.fail(at+".maxAge", "is not in whole seconds", "round it")
	}
}

// corsNames checks methods or names of headers: all are tokens, and "*" is one too.
func corsNames[S ~string](c *checker, at string, names []S) {
	for i, name := range names {
		if !headerName.MatchString(string(name)) {
			c.fail(fmt.Sprintf("%s[%d]", at, i), fmt.Sprintf("%q is not a name", name), "write one name, or \"*\"")
		}
	}
}
