package resolve

import (
	"fmt"
	"math"
	"strconv"

	"google.golang.org/grpc/codes"
	networking "istio.io/api/networking/v1"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

func fault(f *networking.HTTPFaultInjection) *model.Fault {
	if f.GetDelay() == nil && f.GetAbort() == nil {
		return nil
	}
	out := &model.Fault{}
	if d := f.Delay; d != nil {
		out.Delay = &model.FaultDelay{Time: d.GetFixedDelay().AsDuration(), Share: share(d.Percentage)}
		if d.Percentage == nil {
			//nolint:staticcheck // Deprecated in Istio, and still read there.
			out.Delay.Share = uint32(d.Percent) * 10_000
		}
	}
	if a := f.Abort; a != nil {
		out.Abort = &model.FaultAbort{HTTPStatus: uint32(a.GetHttpStatus()), Share: share(a.Percentage)}
		if name := a.GetGrpcStatus(); name != "" {
			var code codes.Code
			// Checked when the object was accepted.
			if code.UnmarshalJSON([]byte(strconv.Quote(name))) == nil {
				out.Abort.GRPCStatus = uint32(code)
			}
		}
	}
	return out
}

// share is a percentage as a share of a million; none without one, as in Istio.
func share(p *networking.Percent) uint32 { return uint32(math.Round(p.GetValue() * 10_000)) }

// mirrors of a route: `mirrors`, or the one that `mirror` and its percentage are; all requests without one, as in Istio.
func (b *builder) mirrors(o *objects.Object, at string, r *networking.HTTPRoute) []model.Mirror {
	var out []model.Mirror
	add := func(at string, d *networking.Destination, percentage *networking.Percent) {
		m := model.Mirror{To: b.target(o, at, d, 1, 1, "nothing is mirrored there"), Share: million}
		if percentage != nil {
			m.Share = share(percentage)
		}
		if m.Share > 0 && !m.To.Missing {
			out = append(out, m)
		}
	}
	for i, m := range r.Mirrors {
		add(fmt.Sprintf("%s.mirrors[%d].destination", at, i), m.Destination, m.Percentage)
	}
	if r.Mirror != nil {
		percentage := r.MirrorPercentage
		//nolint:staticcheck // Deprecated in Istio, and still read there.
		if old := r.MirrorPercent; percentage == nil && old != nil {
			percentage = &networking.Percent{Value: float64(old.Value)}
		}
		add(at+".mirror", r.Mirror, percentage)
	}
	return out
}

const million = 1_000_000

func cors(c *networking.CorsPolicy) *model.CORS {
	if c == nil {
		return nil
	}
	out := &model.CORS{
		Methods: c.AllowMethods, Headers: c.AllowHeaders, Expose: c.ExposeHeaders,
		KeepUnmatched: c.UnmatchedPreflights == networking.CorsPolicy_IGNORE,
	}
	for _, o := range c.AllowOrigins {
		out.Origins = append(out.Origins, stringMatch(o))
	}
	if len(out.Origins) == 0 {
		//nolint:staticcheck // Deprecated in Istio, and still read there where allowOrigins is empty.
		for _, o := range c.AllowOrigin {
			out.Origins = append(out.Origins, model.StringMatch{Kind: model.Exact, Value: o})
		}
	}
	if c.MaxAge != nil {
		age := c.MaxAge.AsDuration()
		out.MaxAge = &age
	}
	if c.AllowCredentials != nil {
		out.Credentials = &c.AllowCredentials.Value
	}
	return out
}
