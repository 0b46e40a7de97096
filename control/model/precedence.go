package model

import "cmp"

// CompareMatches orders matches of one host, the first to try first, as Gateway API has it (HTTPRouteRule.matches and
// GRPCRouteRule.matches): an exact path; a regular expression, whose place the API leaves open; the longest prefix; one with a
// method; the most headers; the most query parameters. Matches that compare the same are tried in the order of their
// routes: the oldest first, then by namespace and name, then in the order of the rules.
func CompareMatches(a, b *HTTPMatch) int {
	return cmp.Or(
		cmp.Compare(pathRank(b), pathRank(a)), cmp.Compare(pathLength(b), pathLength(a)),
		cmp.Compare(methods(b), methods(a)), cmp.Compare(len(b.Headers), len(a.Headers)), cmp.Compare(len(b.Query), len(a.Query)),
	)
}

func pathRank(m *HTTPMatch) int {
	switch {
	case m.Path == nil:
		return 0
	case m.Path.Kind == Exact:
		return 2
	case m.Path.Kind == Regex:
		return 1
	}
	return 0
}

func pathLength(m *HTTPMatch) int {
	if m.Path == nil {
		return 1 // As "/".
	}
	return len(m.Path.Value)
}

// methods is 1 for a match of the method; that of a gRPC method of any service is one of the path's end.
func methods(m *HTTPMatch) int {
	for _, h := range m.Headers {
		if h.Name == ":method" || h.Name == ":path" {
			return 1
		}
	}
	return 0
}
