package peer

import (
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// MaxRefused bounds the resources that a proxy may name as refused in one answer. It is heddle-proxy's own bound.
const MaxRefused = 1000

// maxInfo bounds what is said of one of them, in bytes: a name, and the type.
const maxInfo = MaxName + 256

// Refused are the names of the resources that a proxy refused of a response, by its own word: one google.rpc.ResourceInfo for each in the
// details of its answer, as heddle-proxy has them. It is nil when the proxy does not say, as Envoy, or says more than it may: then all of
// the response may be refused.
func Refused(answer *rpcstatus.Status) map[string]struct{} {
	details := answer.GetDetails()
	if len(details) == 0 || len(details) > MaxRefused {
		return nil
	}
	names := make(map[string]struct{}, len(details))
	for _, detail := range details {
		var info errdetails.ResourceInfo
		if len(detail.GetValue()) > maxInfo || detail.UnmarshalTo(&info) != nil || len(info.GetResourceName()) > MaxName {
			return nil
		}
		names[info.GetResourceName()] = struct{}{}
	}
	return names
}
