package federation

import (
	"context"
	"net"
	"net/http"
	"time"

	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/server/client"
)

// JoinOptions say who joins whom.
type JoinOptions struct {
	// Cluster that joins, on this machine. Its controller must not run: a running one joins by its API.
	Cluster cluster.Cluster
	// Address of the primary's east-west gateways: host, host:port, [ipv6]:port. The port is 15443 by default.
	Address string
	// Token from the primary. A member of the same mesh needs none: joining again only updates the address.
	Token string
	// Version of this program, for the primary's status.
	Version string
	// Dial connects; nil means an ordinary dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Join makes a cluster that does not run a member of another one's mesh. It checks the primary by the token's hash, has
// the primary sign an intermediate for a key that is made here, and writes it to Data/ca and the membership to
// Data/federation. Every failure is a [*client.Problem] and leaves nothing, with one exception: when the primary may have
// accepted and its answer was lost, the key stays (in Data/federation), so that the same command with the same token
// completes the join. Do not remove the data directory then.
func Join(_ context.Context, _ JoinOptions) (Membership, error) {
	return Membership{}, &client.Problem{Status: http.StatusNotImplemented, What: "joining is not possible yet"}
}
