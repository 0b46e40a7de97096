package frontend

import (
	"slices"

	"google.golang.org/grpc/codes"

	"heddle.io/heddle/demo/boutique/boutiquev1"
	"heddle.io/heddle/demo/boutique/identity"
)

// Words the footer uses where there is no identity.
const (
	plaintext = "plaintext" // the server saw no client certificate
	noAnswer  = "no answer" // no server said what it saw
)

// call is a row of the footer.
type call struct {
	Caller, Service, Method string
	// Client and Server are identities, or plaintext, or noAnswer.
	Client, Server string
	// ClientCluster and ServerCluster are where the two run, "" when unknown.
	// The client's is what its certificate proves, the server's what it says.
	ClientCluster, ServerCluster string
	// Secure is whether Client and Server are both identities.
	Secure   bool
	ServedBy string
	Status   string
	Failed   bool
	// Times is how many equal calls the row stands for.
	Times int
}

// calls returns the rows of the footer: the visitor's own request, then every
// call made for it, equal ones together.
func (v *visit) calls() []call {
	seen := identity.ParseForwarded(identity.Echo(v.r.Header.Values(identity.HeaderForwarded)))
	rows := []call{toCall(&boutiquev1.Hop{
		Caller: "visitor", Service: Name, Method: v.r.Method, ClientIdentity: seen.Client, ServerIdentity: seen.Server,
		ServedBy: v.shop.ServedBy, Status: codes.OK.String(), ClientCluster: seen.ClientCluster,
	})}
	index := map[call]int{}
	for _, hop := range v.ledger.Hops() {
		row := toCall(hop)
		if i, known := index[row]; known {
			rows[i].Times++
			continue
		}
		index[row] = len(rows)
		rows = append(rows, row)
	}
	return rows
}

// clusters returns the names of the clusters that answered the calls, sorted.
func clusters(calls []call) []string {
	var names []string
	for _, c := range calls {
		if c.ServerCluster != "" && !slices.Contains(names, c.ServerCluster) {
			names = append(names, c.ServerCluster)
		}
	}
	slices.Sort(names)
	return names
}

func toCall(hop *boutiquev1.Hop) call {
	row := call{
		Caller: hop.Caller, Service: hop.Service, Method: hop.Method, ServedBy: hop.ServedBy,
		Client: hop.ClientIdentity, Server: hop.ServerIdentity,
		ClientCluster: hop.ClientCluster, ServerCluster: identity.ServingCluster(hop.ServedBy),
		Secure: hop.ClientIdentity != "" && hop.ServerIdentity != "",
		Status: hop.Status, Failed: hop.Status != codes.OK.String(), Times: 1,
	}
	absent := plaintext
	if hop.ServedBy == "" {
		// A proxy refused the call or nobody was there: nothing is known of the
		// connection, least of all that it was plaintext.
		absent, row.ServedBy = noAnswer, "–"
	}
	if row.Client == "" {
		row.Client = absent
	}
	if row.Server == "" {
		row.Server = absent
	}
	return row
}
