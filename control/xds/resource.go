package xds

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
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

// Resource is one message for proxies, marshalled and hashed once and shared by all that have it: responses refer to its
// bytes. It is not changed.
type Resource struct {
	typ           Type
	name, version string
	// entry is the resource in DeltaDiscoveryResponse.resources, or, without the name and the version in front of the message,
	// in DiscoveryResponse.resources: from the offset of whole on. Both fields have the same number. The message goes on in
	// parts.
	entry  mem.SliceBuffer
	whole  int
	parts  []*Part
	length int
}

// Part is a piece of a marshalled message that several resources share. It is not changed.
type Part struct {
	bytes  mem.SliceBuffer
	digest [versionBytes]byte
}

// NewPart takes a piece of a marshalled message.
func NewPart(bytes []byte) *Part {
	digest := sha256.Sum256(bytes)
	return &Part{bytes: bytes, digest: [versionBytes]byte(digest[:])}
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
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal %s %s: %w", t, name, err)
	}
	digest := sha256.Sum256(value)
	version := base64.RawURLEncoding.EncodeToString(digest[:versionBytes])
	if cluster != nil {
		version += "-" + cluster.version
	}
	r := newResource(t, name, version, m.ProtoReflect().Descriptor().FullName(), len(value), len(value))
	r.entry = append(r.entry, value...)
	return r, nil
}

// NewResourceOf is [NewResource] for a message that is marshalled in parts, one behind the other, and is not endpoints. Only
// those made in the same parts have the same version.
func NewResourceOf(t Type, name string, message protoreflect.FullName, parts []*Part) *Resource {
	digest, length := sha256.New(), 0
	for _, part := range parts {
		digest.Write(part.digest[:])
		length += len(part.bytes)
	}
	r := newResource(t, name, base64.RawURLEncoding.EncodeToString(digest.Sum(nil)[:versionBytes]), message, length, 0)
	r.parts = parts
	r.length += length
	return r
}

// Numbers of fields. Those of the two responses' resources are the same.
const (
	fieldResources = 2
	// discovery.Resource
	fieldVersion, fieldMessage, fieldName = 1, 2, 3
	// google.protobuf.Any
	fieldTypeURL, fieldValue = 1, 2
)

// newResource makes a resource up to the bytes of its message, which are as many, with room for those that follow at once.
func newResource(t Type, name, version string, message protoreflect.FullName, size, room int) *Resource {
	url := "type.googleapis.com/" + string(message)
	text := func(field protowire.Number, s string) int {
		return protowire.SizeTag(field) + protowire.SizeBytes(len(s))
	}
	packed := text(fieldTypeURL, url) + protowire.SizeTag(fieldValue) + protowire.SizeBytes(size)
	inner := text(fieldName, name) + text(fieldVersion, version) + protowire.SizeTag(fieldMessage) + protowire.SizeBytes(packed)
	length := protowire.SizeTag(fieldResources) + protowire.SizeBytes(inner)
	b := make([]byte, 0, length-size+room)
	open := func(field protowire.Number, size int) {
		b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(size))
	}
	open(fieldResources, inner)
	open(fieldName, len(name))
	r := &Resource{typ: t, name: name, version: version}
	b = append(b, name...)
	open(fieldVersion, len(version))
	b = append(b, version...)
	r.whole = len(b)
	open(fieldMessage, packed)
	open(fieldTypeURL, len(url))
	b = append(b, url...)
	open(fieldValue, size)
	r.entry, r.length = b, len(b)+room
	return r
}

// Type of the resource.
func (r *Resource) Type() Type { return r.typ }

// Name of the resource.
func (r *Resource) Name() string { return r.name }

// Version is the same for the same content, and another for another.
func (r *Resource) Version() string { return r.version }

// Message is what the resource holds.
func (r *Resource) Message() (proto.Message, error) {
	bytes := slices.Clone(r.entry[r.whole:])
	for _, part := range r.parts {
		bytes = append(bytes, part.bytes...)
	}
	var out discovery.DiscoveryResponse
	if err := proto.Unmarshal(bytes, &out); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", r.typ, r.name, err)
	}
	return out.Resources[0].UnmarshalNew()
}

// size is that on the wire, in bytes.
func (r *Resource) size() int { return r.length }
