package federation

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/peer"
	"heddle.io/heddle/control/server/client"
)

// Versions of the protocol that this program speaks.
const (
	oldestProtocol = 2
	newestProtocol = 2
)

// codeOf is the gRPC code and the HTTP status that go with a refusal's reason.
var codeOf = map[pb.Refusal_Reason]struct {
	grpc codes.Code
	http int
}{
	pb.Refusal_UNSUPPORTED:   {codes.FailedPrecondition, http.StatusConflict},
	pb.Refusal_NOT_PRIMARY:   {codes.FailedPrecondition, http.StatusConflict},
	pb.Refusal_TOKEN_UNKNOWN: {codes.PermissionDenied, http.StatusForbidden},
	pb.Refusal_TOKEN_USED:    {codes.PermissionDenied, http.StatusForbidden},
	pb.Refusal_TOKEN_EXPIRED: {codes.PermissionDenied, http.StatusForbidden},
	pb.Refusal_NAME_TAKEN:    {codes.AlreadyExists, http.StatusConflict},
	pb.Refusal_INVALID:       {codes.InvalidArgument, http.StatusBadRequest},
	pb.Refusal_BUSY:          {codes.ResourceExhausted, http.StatusTooManyRequests},
	pb.Refusal_REMOVED:       {codes.PermissionDenied, http.StatusForbidden},
	pb.Refusal_FAILED:        {codes.Unavailable, http.StatusServiceUnavailable},
	pb.Refusal_REPLACED:      {codes.Aborted, http.StatusConflict},
}

// refuse makes the error by which a call is refused. The caller is told all of it.
func refuse(reason pb.Refusal_Reason, what, why, remedy string) error {
	s := status.New(codeOf[reason].grpc, what)
	detailed, err := s.WithDetails(&pb.Refusal{Reason: reason, What: what, Why: why, Remedy: remedy})
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}

// refusalIn finds what refuse made in an error that came over the wire, or nil.
func refusalIn(err error) *pb.Refusal {
	for _, detail := range status.Convert(err).Details() {
		if r, ok := detail.(*pb.Refusal); ok {
			return r
		}
	}
	return nil
}

// reasonOf is the reason of a refusal, and REASON_UNSPECIFIED of any other error.
func reasonOf(err error) pb.Refusal_Reason { return refusalIn(err).GetReason() }

// problem tells a person about an error of a call to the primary at an address.
func problem(err error, address string) *client.Problem {
	var ready *client.Problem
	if errors.As(err, &ready) {
		return ready
	}
	if r := refusalIn(err); r != nil {
		return &client.Problem{Status: max(codeOf[r.GetReason()].http, http.StatusBadRequest), What: clip(r.GetWhat()), Where: address, Why: clip(r.GetWhy()), Remedy: clip(r.GetRemedy())}
	}
	switch s := status.Convert(err); {
	case errors.Is(err, context.DeadlineExceeded), s.Code() == codes.DeadlineExceeded:
		return &client.Problem{Status: http.StatusGatewayTimeout, What: "the primary did not answer in time", Where: address, Why: clip(s.Message()),
			Remedy: "see whether its controller runs: `heddle cluster status` there"}
	case s.Code() == codes.Unimplemented:
		return &client.Problem{Status: http.StatusConflict, What: "the primary does not know the call", Where: address, Why: clip(s.Message()), Remedy: "upgrade it"}
	default:
		return &client.Problem{Status: http.StatusBadGateway, What: "the connection to the primary failed", Where: address, Why: clip(s.Message()),
			Remedy: "try again; `heddle cluster status` at the primary says how it fares"}
	}
}

// maxWords bounds what is repeated of a peer's own words.
const maxWords = 500

// clip shortens a peer's words, and keeps control characters away from terminals and logs.
func clip(words string) string { return peer.Words(words, maxWords, false) }

// checkProtocol refuses who speaks no version of the protocol that this program speaks.
func checkProtocol(protocol uint32, theirs, ours string) error {
	if protocol >= oldestProtocol && protocol <= newestProtocol {
		return nil
	}
	remedy := "upgrade the member"
	if protocol > newestProtocol {
		remedy = "upgrade the primary first"
	}
	return refuse(pb.Refusal_UNSUPPORTED, fmt.Sprintf("the clusters' versions do not fit together: the member speaks federation protocol %d (heddle %s), the primary %s (heddle %s)",
		protocol, clip(theirs), protocolRange(oldestProtocol, newestProtocol), ours), "", remedy)
}

func protocolRange(oldest, newest uint32) string {
	if oldest == newest {
		return fmt.Sprint(oldest)
	}
	return fmt.Sprintf("%d to %d", oldest, newest)
}
