package xds

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Type of resources. Its order is the order in which changes are sent: what others refer to goes first.
type Type int

// Types that are served.
const (
	Clusters Type = iota
	Endpoints
	Secrets
	Listeners
	Routes
	typeCount
)

var typeNames = [typeCount]struct{ url, short string }{
	Clusters: {resource.ClusterType, "CDS"}, Endpoints: {resource.EndpointType, "EDS"}, Secrets: {resource.SecretType, "SDS"},
	Listeners: {resource.ListenerType, "LDS"}, Routes: {resource.RouteType, "RDS"},
}

// statusOrder is that of `proxy status`.
var statusOrder = [typeCount]Type{Clusters, Listeners, Endpoints, Routes, Secrets}

// String is the type's short name, for example CDS.
func (t Type) String() string { return typeNames[t].short }

func typeOf(url string) (Type, bool) {
	for t, name := range typeNames {
		if name.url == url {
			return Type(t), true
		}
	}
	return 0, false
}

// Resource is one message for proxies, marshalled and hashed once and shared by all that have it. It is not changed.
type Resource struct {
	typ  Type
	wire *discovery.Resource
}

// versionBytes of the hash are a version, 16 characters long.
const versionBytes = 12

// NewResource marshals a message. Its version says what it holds, so that a proxy that reconnects to another controller is
// not sent what it has.
//
// Endpoints name their cluster. They have another version whenever the cluster has: Envoy takes a changed cluster into use
// only when it has heard the cluster's endpoints after it, and over the incremental protocol it does not ask again for what
// it has. Without this, the change would wait for ever.
func NewResource(t Type, name string, m proto.Message, cluster *Resource) (*Resource, error) {
	packed := &anypb.Any{}
	if err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, fmt.Errorf("marshal %s %s: %w", t, name, err)
	}
	return newResource(t, name, packed, cluster), nil
}

// NewPackedResource is [NewResource] for a message that is marshalled already, and is not endpoints.
func NewPackedResource(t Type, name string, packed *anypb.Any) *Resource {
	return newResource(t, name, packed, nil)
}

func newResource(t Type, name string, packed *anypb.Any, cluster *Resource) *Resource {
	digest := sha256.Sum256(packed.GetValue())
	version := base64.RawURLEncoding.EncodeToString(digest[:versionBytes])
	if cluster != nil {
		version += "-" + cluster.Version()
	}
	return &Resource{typ: t, wire: &discovery.Resource{Name: name, Version: version, Resource: packed}}
}

// Type of the resource.
func (r *Resource) Type() Type { return r.typ }

// Name of the resource.
func (r *Resource) Name() string { return r.wire.GetName() }

// Version is the same for the same content, and another for another.
func (r *Resource) Version() string { return r.wire.GetVersion() }

// Message is what the resource holds.
func (r *Resource) Message() (proto.Message, error) { return r.wire.GetResource().UnmarshalNew() }

// size is about that on the wire, in bytes.
func (r *Resource) size() int {
	return len(r.wire.GetResource().GetValue()) + len(r.wire.GetName()) + len(r.wire.GetVersion())
}
