package federation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/api/v1alpha1"
	"heddle.io/heddle/control/audit"
	"heddle.io/heddle/control/ca"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/server/client"
	"heddle.io/heddle/control/store"
)

// maxClusters is how many clusters a mesh may have.
const maxClusters = 128

// service answers other controllers.
type service struct {
	pb.UnimplementedFederationServer
	f *Federation
}

// Hello implements the service. A member answers it too, to say who is its primary.
func (s *service) Hello(context.Context, *pb.HelloRequest) (*pb.HelloResponse, error) {
	f := s.f
	response := &pb.HelloResponse{Oldest: oldestProtocol, Newest: newestProtocol, Version: f.config.Version, Cluster: f.config.Cluster.Name,
		TrustDomain: f.config.Settings.TrustDomain, Time: f.config.Now().UnixNano()}
	f.mu.Lock()
	defer f.mu.Unlock()
	response.Primary, response.PrimaryAddress = f.primaryLocked(), f.membership.Address
	if !f.member && len(f.own.Gateways) > 0 {
		response.PrimaryAddress = f.own.Gateways[0].String()
	}
	return response, nil
}

// mustBePrimary refuses what only a primary can do.
func (f *Federation) mustBePrimary() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.joining {
		return refuse(pb.Refusal_NOT_PRIMARY, f.config.Cluster.Name+" is joining another mesh", "", "join that mesh, at its primary")
	}
	if !f.member {
		return nil
	}
	return refuse(pb.Refusal_NOT_PRIMARY, f.config.Cluster.Name+" is not the primary of its mesh", "it is a member of the mesh of "+f.membership.Primary,
		fmt.Sprintf("ask %s, at %s", f.membership.Primary, f.membership.Address))
}

// Join implements the service.
func (s *service) Join(ctx context.Context, request *pb.JoinRequest) (*pb.JoinResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := s.f.admit(ctx, request)
	if err == nil {
		return response, nil
	}
	f := s.f
	f.counters.add(countJoinsRefused)
	f.config.Log.Warn("join refused", "cluster", clip(request.GetCluster()), "token", clip(request.GetTokenId()), "error", err)
	if refusalIn(err) == nil {
		return nil, refuse(pb.Refusal_FAILED, "the primary cannot accept a cluster now", clip(err.Error()), "see `heddle logs --controller` there, and try again")
	}
	// Guessing is hopeless, and is not answered in detail at any rate.
	if reasonOf(err) == pb.Refusal_TOKEN_UNKNOWN && !f.tokens.failures.AllowN(f.config.Now(), 1) {
		return nil, refuse(pb.Refusal_BUSY, "there were too many attempts to join with tokens that are not known", "", "try again in a minute; a good token is not affected")
	}
	return nil, err
}

// admit makes a cluster a member: token and Cluster object change together or not at all.
func (f *Federation) admit(ctx context.Context, request *pb.JoinRequest) (*pb.JoinResponse, error) {
	if err := checkProtocol(request.GetProtocol(), request.GetVersion(), f.config.Version); err != nil {
		return nil, err
	}
	name := request.GetCluster()
	if _, err := cluster.New(name); err != nil {
		return nil, refuse(pb.Refusal_INVALID, clip(err.Error()), "", "")
	}
	if !isHex(request.GetTokenId(), 2*tokenIDBytes) {
		return nil, refuse(pb.Refusal_INVALID, "the token's id is malformed", "", "copy the token whole")
	}
	key, err := ca.RequestKeyHash(request.GetRequest())
	if err != nil {
		return nil, refuse(pb.Refusal_INVALID, "the request for the intermediate cannot be granted", clip(err.Error()), "use the same version of heddle on both sides")
	}
	for {
		response, err := f.admitOnce(ctx, request, name, key)
		// Someone used the token, made the cluster or touched either in between: look again.
		if errors.Is(err, store.ErrConflict) && ctx.Err() == nil {
			continue
		}
		return response, err
	}
}

func (f *Federation) admitOnce(ctx context.Context, request *pb.JoinRequest, name, key string) (*pb.JoinResponse, error) {
	// A cluster that begins to join another mesh must know of the members that it has.
	f.primacy.RLock()
	defer f.primacy.RUnlock()
	if err := f.mustBePrimary(); err != nil {
		return nil, err
	}
	if _, changing := f.config.Authority.Change(); changing {
		return nil, refuse(pb.Refusal_BUSY, "the mesh is changing its root, and takes no cluster until that is done", "", "try again later, with a new token: `heddle ca status` at the primary shows how far it is")
	}
	token, err := f.tokens.find(ctx, request.GetTokenId(), request.GetTokenSecret())
	if err != nil {
		return nil, err
	}
	existing, err := f.clusterObject(ctx, name)
	if err != nil {
		return nil, err
	}
	// The same key proves the same cluster: it joins again, or its answer was lost.
	repair := existing != nil && existing.Spec.Key == key && !existing.Spec.Primary
	again := repair && token.usedBy == name && token.usedKey == key
	if token.usedBy != "" && !again {
		return nil, refuse(pb.Refusal_TOKEN_USED, "the token was used already", fmt.Sprintf("cluster %s used it at %s", token.usedBy, token.usedAt), "`heddle cluster token` at the primary makes a new one")
	}
	if existing != nil && !repair {
		return nil, refuse(pb.Refusal_NAME_TAKEN, fmt.Sprintf("the mesh has a cluster %q already", name), "it joined with another key",
			fmt.Sprintf("join under another name; or, if that cluster and its keys are gone for good, take it out first at the primary: `heddle cluster remove %s`", name))
	}
	// Nothing of it leaves before the store has taken the rest.
	issued, err := f.config.Authority.SignIntermediate(request.GetRequest(), name, key)
	if errors.Is(err, ca.ErrRefused) {
		return nil, refuse(pb.Refusal_INVALID, "the request for the intermediate cannot be granted", clip(err.Error()), "")
	}
	if err != nil {
		return nil, err
	}
	now := f.config.Now().UTC().Truncate(time.Second)
	joined := now
	var writes []store.Write
	if token.usedBy == "" {
		w, err := token.used(name, key, now)
		if err != nil {
			return nil, err
		}
		writes = append(writes, w)
	}
	if repair {
		joined = existing.Spec.Joined.Time
	} else {
		all, _, err := f.config.Store.List(ctx, objects.Cluster, "")
		if err != nil {
			return nil, err
		}
		if len(all) >= maxClusters {
			return nil, refuse(pb.Refusal_BUSY, fmt.Sprintf("the mesh has %d clusters, which is the most", len(all)), "", "remove clusters that are gone")
		}
		o := &objects.Object{Kind: objects.Cluster, Origin: objects.Origin{Cluster: f.config.Cluster.Name, User: "join token " + request.GetTokenId()}, Resource: &v1alpha1.Cluster{
			TypeMeta:   metav1.TypeMeta{APIVersion: objects.Cluster.APIVersion(), Kind: objects.Cluster.Kind},
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.ClusterSpec{Key: key, Joined: metav1.NewTime(now)},
		}}
		objects.SetCreated(o, nil, metav1.NewTime(now), request.GetTokenId()+"-"+key[:16], true)
		writes = append(writes, store.Write{Key: o.Key(), Object: o, IfVersion: store.Absent})
	}
	ended, err := f.config.Audit.Begin(audit.Record{Who: "join token " + request.GetTokenId(), From: addressOf(ctx), Action: audit.JoinCluster, Objects: []audit.Object{{Name: "Cluster/" + name}},
		Detail: fmt.Sprintf("intermediate for the key %s, signed until %s, again %t", key, issued.Expires.UTC().Format(time.RFC3339), repair)})
	if err != nil {
		return nil, unrecorded(err)
	}
	if len(writes) > 0 {
		err = f.config.Store.Apply(ctx, writes)
	}
	ended("", err)
	if err != nil {
		return nil, err
	}
	if repair {
		f.counters.add(countRepairs)
	} else {
		f.counters.add(countJoins)
	}
	f.config.Log.Info("cluster joined", "cluster", name, "repaired", repair, "version", clip(request.GetVersion()), "token", request.GetTokenId())
	return &pb.JoinResponse{Primary: f.config.Cluster.Name, Issued: message(issued), Joined: joined.UnixNano()}, nil
}

// clusterObject reads a Cluster from the store; nil when there is none.
func (f *Federation) clusterObject(ctx context.Context, name string) (*v1alpha1.Cluster, error) {
	o, err := f.config.Store.Get(ctx, objects.Key{Group: objects.Cluster.Group, Kind: objects.Cluster.Kind, Name: name})
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c, ok := o.Resource.(*v1alpha1.Cluster)
	if !ok {
		return nil, fmt.Errorf("%s is no Cluster", o.Key())
	}
	return c, nil
}

func message(i ca.Intermediate) *pb.Issued {
	return &pb.Issued{Certificate: i.Certificate, Root: i.Root}
}

func isHex(text string, length int) bool {
	return len(text) == length && strings.Trim(text, "0123456789abcdef") == ""
}

// caller is the cluster that a call's certificate is of, which was a member when the certificate was issued: whether it
// still is one, authorize says.
func (f *Federation) caller(ctx context.Context) (peerOf, *admitted, error) {
	caller, ok := callerOf(ctx)
	if !ok || len(caller.State.VerifiedChains) == 0 {
		return peerOf{}, nil, refuse(pb.Refusal_INVALID, "this needs the certificate of a member's controller", "", "join first")
	}
	who, err := identify(caller.State.VerifiedChains, f.config.Settings.TrustDomain)
	if err != nil {
		return peerOf{}, nil, refuse(pb.Refusal_INVALID, "the certificate is not of a member's controller", clip(err.Error()), "join first")
	}
	return who, caller, nil
}

// authorize says whether a cluster is a member now. The store is asked, not what is known of it: a removal counts at once.
// Who joined under the name of a cluster that was removed has another membership, so the removed one stays out.
func (f *Federation) authorize(ctx context.Context, who peerOf) error {
	if err := f.mustBePrimary(); err != nil {
		return err
	}
	c, err := f.clusterObject(ctx, who.cluster)
	if err != nil {
		return err
	}
	if c == nil || c.Spec.Primary || c.Spec.Key != who.membership {
		return removedError(who.cluster, f.config.Cluster.Name)
	}
	return nil
}

// removedError is what a cluster is told that was taken out of the mesh.
func removedError(name, primary string) error {
	return refuse(pb.Refusal_REMOVED, fmt.Sprintf("cluster %q is not a member of this mesh any more", name), "it was removed at the primary "+primary,
		"join again with a new token: `heddle cluster token` at the primary, then `heddle cluster join`")
}

// Renew implements the service.
func (s *service) Renew(ctx context.Context, request *pb.RenewRequest) (*pb.RenewResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	f := s.f
	who, _, err := f.caller(ctx)
	if err == nil {
		err = f.authorize(ctx, who)
	}
	if err != nil {
		f.counters.add(countCallsRefused)
		return nil, f.sayable(err)
	}
	if !f.ratesOf(who).renewals.AllowN(f.config.Now(), 1) {
		f.counters.add(countCallsRefused)
		return nil, refuse(pb.Refusal_BUSY, fmt.Sprintf("cluster %q renews its intermediate too often", who.cluster), "each one is recorded", "try again in a minute; the one that it has is good")
	}
	issued, err := f.config.Authority.SignIntermediate(request.GetRequest(), who.cluster, who.membership)
	if err != nil {
		f.counters.add(countCallsRefused)
		if errors.Is(err, ca.ErrRefused) {
			return nil, refuse(pb.Refusal_INVALID, "the request for the intermediate cannot be granted", clip(err.Error()), "")
		}
		return nil, f.sayable(err)
	}
	if err := f.config.Audit.Signed(audit.Record{Who: "cluster " + who.cluster, From: addressOf(ctx), Action: audit.Sign, Objects: []audit.Object{{Name: "Cluster/" + who.cluster}},
		Detail: fmt.Sprintf("intermediate of the membership %s, until %s", who.membership, issued.Expires.UTC().Format(time.RFC3339))}); err != nil {
		f.counters.add(countCallsRefused)
		return nil, unrecorded(err)
	}
	f.counters.add(countRenewals)
	f.config.Log.Info("intermediate renewed", "cluster", who.cluster, "expires", issued.Expires)
	return &pb.RenewResponse{Issued: message(issued)}, nil
}

// unrecorded is what a cluster is told whose call could not be recorded; where the log is, is not its business.
func unrecorded(err error) error {
	var p *client.Problem
	if errors.As(err, &p) {
		return refuse(pb.Refusal_FAILED, p.What, "", p.Remedy)
	}
	return err
}

// addressOf is where a call came from: for what east-west gateways pass on, the gateway.
func addressOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// sayable makes any error one that may be told to the caller.
func (f *Federation) sayable(err error) error {
	if refusalIn(err) != nil {
		return err
	}
	f.config.Log.Warn("a member's call failed", "error", err)
	return refuse(pb.Refusal_FAILED, "the primary cannot do it now", clip(err.Error()), "it is tried again")
}

// Sync implements the service.
func (s *service) Sync(call grpc.BidiStreamingServer[pb.FromMember, pb.FromPrimary]) error {
	err := s.f.sync(call)
	if err == nil {
		return nil
	}
	return s.f.sayable(err)
}
