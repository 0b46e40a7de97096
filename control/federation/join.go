package federation

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
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

// joining is a join that is under way. It is kept on disk, so that a join whose answer was lost is repeated with the same
// key, and a running cluster's change of roots goes on after a restart.
type joining struct {
	Address string `json:"address"`
	TokenID string `json:"tokenId"`
	// Key and Request of the intermediate, PEM.
	Key     string `json:"key"`
	Request string `json:"request"`
	// Certificate and Root, PEM, are there once the primary answered; Membership too.
	Certificate string     `json:"certificate,omitempty"`
	Root        string     `json:"root,omitempty"`
	Membership  Membership `json:"membership,omitzero"`
}

func (j joining) issuer() ca.Issuer {
	return ca.Issuer{Key: []byte(j.Key), Certificate: []byte(j.Certificate), Root: []byte(j.Root)}
}

func joiningPath(c cluster.Cluster) string { return filepath.Join(dir(c), "joining.json") }

// Join makes a cluster that does not run a member of another one's mesh. It checks the primary by the token's hash, has
// the primary sign an intermediate for a key that is made here, and writes it to Data/ca and the membership to
// Data/federation. Every failure is a [*client.Problem] and leaves nothing, with one exception: unless the primary has
// clearly refused, the key stays (in Data/federation), so that the same command with the same token completes the join
// although an answer was lost. Do not remove the data directory then.
func Join(ctx context.Context, o JoinOptions) (Membership, error) {
	m, err := join(ctx, o)
	if err != nil {
		return Membership{}, local(err)
	}
	return m, nil
}

func join(ctx context.Context, o JoinOptions) (Membership, error) {
	s := stranger{cluster: o.Cluster, trustDomain: cluster.Domain, version: o.Version, dial: o.Dial, now: o.Now}
	if s.dial == nil {
		s.dial = (&net.Dialer{}).DialContext
	}
	if s.now == nil {
		s.now = time.Now
	}
	address, err := JoinAddress(o.Address)
	if err != nil {
		return Membership{}, err
	}
	var token Token
	if o.Token != "" {
		if token, err = ParseToken(o.Token); err != nil {
			return Membership{}, err
		}
	}
	current, isMember, err := ReadMembership(o.Cluster)
	if err != nil {
		return Membership{}, err
	}
	if isMember {
		if kept, err := readKept(o.Cluster); err != nil {
			return Membership{}, err
		} else if o.Token == "" || !kept.removedFrom(current) && usable(o.Cluster, s.now()) {
			return s.repair(ctx, current, address, token)
		}
	}
	if o.Token == "" {
		return Membership{}, &client.Problem{Status: http.StatusBadRequest, What: "joining needs a token", Remedy: "`heddle cluster token` at the primary makes one"}
	}
	if !isMember && exists(filepath.Join(o.Cluster.Data(), "store")) {
		return Membership{}, &client.Problem{Status: http.StatusConflict, What: fmt.Sprintf("cluster %q has run before, as the primary of its own mesh", o.Cluster.Name), Where: o.Cluster.Data(),
			Remedy: "start it without --join, then use `heddle cluster join`; or begin anew after `heddle down`"}
	}
	clean, err := makeDirs(AuthorityDir(o.Cluster), dir(o.Cluster))
	if err != nil {
		return Membership{}, err
	}
	defer clean()
	j, accepted, err := s.accepted(token, current)
	if err == nil && !accepted {
		j, err = s.obtain(ctx, address, token)
	}
	if err != nil {
		return Membership{}, err
	}
	if err := ca.CreateMember(ca.Options{Dir: AuthorityDir(o.Cluster), Cluster: o.Cluster.Name, TrustDomain: s.trustDomain, Now: s.now}, j.issuer()); err != nil {
		return Membership{}, err
	}
	if err := writeMembership(o.Cluster, j.Membership); err != nil {
		return Membership{}, err
	}
	if err := durable.Remove(joiningPath(o.Cluster)); err != nil {
		return Membership{}, err
	}
	return j.Membership, nil
}

// repair lets a member find its primary at another address. It needs no token, and with the address that is known already
// not even a primary.
func (s stranger) repair(ctx context.Context, current Membership, address string, token Token) (Membership, error) {
	if token.RootHash != "" && token.RootHash != current.RootHash {
		return Membership{}, &client.Problem{Status: http.StatusConflict, What: fmt.Sprintf("cluster %q is a member of another mesh already, that of %s", s.cluster.Name, current.Primary),
			Where: membershipPath(s.cluster), Remedy: "remove the cluster with `heddle down` before it joins another one"}
	}
	if address == current.Address {
		return current, nil
	}
	i, err := s.introduce(ctx, address, current.RootHash)
	if err != nil {
		return Membership{}, err
	}
	i.close()
	current.Address = address
	if err := writeMembership(s.cluster, current); err != nil {
		return Membership{}, err
	}
	return current, nil
}

// usable says whether a member's intermediate can still issue certificates. With one that cannot, it is no member's
// controller to its primary either, and has to join again.
func usable(c cluster.Cluster, now time.Time) bool {
	expires, err := ca.MemberExpires(AuthorityDir(c))
	return err == nil && now.Before(expires)
}

// accepted finds a join that the primary has accepted and that was not completed here, and says whether there is one.
// Repeating its command completes it, without the primary. Another token is refused: the primary counts on this join.
func (s stranger) accepted(token Token, current Membership) (joining, bool, error) {
	j, pending, err := unfinished(s.cluster, current)
	if err != nil || !pending {
		return joining{}, false, err
	}
	if j.TokenID != token.ID {
		return joining{}, false, &client.Problem{Status: http.StatusConflict, What: fmt.Sprintf("cluster %q is joining the mesh of %s already, with another token", s.cluster.Name, j.Membership.Primary),
			Where: joiningPath(s.cluster), Why: "the primary has accepted it, and the join is not complete here yet",
			Remedy: "repeat the command with that token; a running controller completes the join by itself, `heddle cluster status` shows it"}
	}
	return j, true, nil
}

// unfinished reads a join that was accepted, unless it is the one that made the current membership.
func unfinished(c cluster.Cluster, current Membership) (joining, bool, error) {
	var j joining
	if _, err := readJSON(joiningPath(c), &j); err != nil {
		return joining{}, false, err
	}
	done := j.Membership.RootHash == current.RootHash && j.Membership.Joined.Equal(current.Joined)
	return j, j.Certificate != "" && !done, nil
}

// attempts to have a lost answer repeated.
const attempts = 3

// obtain has the primary accept this cluster, for a token. Before the token's secret is sent, key and request are on disk;
// when it returns without error, the answer is too. They are removed only when it is certain that the primary has not
// accepted: when the first attempt that ever was made with them is refused for good.
func (s stranger) obtain(ctx context.Context, address string, token Token) (joining, error) {
	path := joiningPath(s.cluster)
	var j joining
	if _, err := readJSON(path, &j); err != nil {
		return j, err
	}
	i, err := s.introduce(ctx, address, token.RootHash)
	if err != nil {
		return j, err
	}
	defer func() { i.close() }()
	fresh := j.TokenID != token.ID
	if fresh {
		key, request, err := ca.NewIntermediateRequest(s.cluster.Name, nil)
		if err != nil {
			return j, err
		}
		j = joining{TokenID: token.ID, Key: string(key), Request: string(request)}
	}
	j.Address = address
	if err := durable.WriteJSON(path, j, 0o600); err != nil {
		return j, err
	}
	var response *pb.JoinResponse
	for attempt := 1; ; attempt++ {
		calling, cancel := context.WithTimeout(ctx, callTimeout)
		response, err = i.api.Join(calling, &pb.JoinRequest{Protocol: newestProtocol, Version: s.version, Cluster: s.cluster.Name,
			TokenId: token.ID, TokenSecret: token.secret, Request: []byte(j.Request)})
		cancel()
		if err == nil {
			break
		}
		if refusalIn(err) != nil {
			if fresh && attempt == 1 && final(reasonOf(err)) {
				return j, giveUp(path, problem(err, address))
			}
			return j, problem(err, address)
		}
		lost := problem(err, address)
		lost.What, lost.Remedy = "the primary may have accepted, and its answer was lost", "repeat the same command: with the same token, it completes the join"
		if attempt == attempts || ctx.Err() != nil {
			return j, lost
		}
		i.close()
		again, err := s.introduce(ctx, address, token.RootHash)
		if err != nil {
			return j, lost
		}
		i = again
	}
	j.Certificate, j.Root = string(response.GetIssued().GetCertificate()), string(response.GetIssued().GetRoot())
	j.Membership = Membership{Primary: i.hello.GetCluster(), Address: address, RootHash: token.RootHash, Joined: time.Unix(0, response.GetJoined()).UTC()}
	err = ca.CheckMember(ca.Options{Cluster: s.cluster.Name, TrustDomain: s.trustDomain, Now: s.now}, j.issuer())
	if hash, hashErr := hashOf(response.GetIssued().GetRoot()); err == nil && (hashErr != nil || hash != token.RootHash) {
		err = errors.New("its root is not the token's")
	}
	if err != nil {
		return j, giveUp(path, &client.Problem{Status: http.StatusBadGateway, What: "the primary's answer is of no use", Where: address, Why: clip(err.Error()),
			Remedy: "use the same version of heddle on both sides; remove the cluster at the primary before it joins again"})
	}
	if err := durable.WriteJSON(path, j, 0o600); err != nil {
		return j, err
	}
	return j, nil
}

// final says whether the same request will be refused again. Others may even have been accepted, by a primary that failed
// afterwards.
func final(reason pb.Refusal_Reason) bool {
	return reason != pb.Refusal_FAILED && reason != pb.Refusal_BUSY && reason != pb.Refusal_REASON_UNSPECIFIED
}

// giveUp forgets a join that cannot be completed.
func giveUp(path string, why *client.Problem) error {
	if err := durable.Remove(path); err != nil {
		why.Why += fmt.Sprintf(" (and %s could not be removed: %v)", path, err)
	}
	return why
}

// local is a failure of this machine.
func local(err error) *client.Problem {
	var ready *client.Problem
	if errors.As(err, &ready) {
		return ready
	}
	return &client.Problem{Status: http.StatusInternalServerError, What: "joining failed on this machine", Why: err.Error(), Remedy: "correct the cause and repeat the command"}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// makeDirs makes directories, of which the given function removes what is still empty then and was not there before.
func makeDirs(paths ...string) (func(), error) {
	var made []string
	clean := func() {
		for i := len(made) - 1; i >= 0; i-- {
			// One that is not empty stays, which is the point.
			_ = os.Remove(made[i])
		}
	}
	for _, path := range paths {
		for _, d := range []string{filepath.Dir(filepath.Dir(path)), filepath.Dir(path), path} {
			if exists(d) {
				continue
			}
			mode := os.FileMode(0o711) // The data directory is passed through by proxies.
			if d == path {
				mode = 0o700
			}
			if err := os.Mkdir(d, mode); err != nil {
				clean()
				return nil, fmt.Errorf("make directory: %w", err)
			}
			made = append(made, d)
		}
	}
	return clean, nil
}
