package objects

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	mesh "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/control/cluster"
)

// The mesh's configuration is this ConfigMap of the root namespace, as Istio's.
const (
	MeshConfigName = "istio"
	MeshConfigKey  = "mesh"
)

// maxMeshConfig bounds the text of the mesh's configuration, in bytes.
const maxMeshConfig = 256 << 10

// AuthoritiesKey is where a ConfigMap or Secret has the certificates of authorities, in PEM.
const AuthoritiesKey = "ca.crt"

// IsMeshConfig says whether a ConfigMap is the mesh's configuration.
func IsMeshConfig(key Key) bool {
	return key.Namespace == cluster.GatewayNamespace && key.Name == MeshConfigName
}

// authorities checks a ConfigMap that is not the mesh's configuration: it can hold what a BackendTLSPolicy trusts.
func (c *checker) authorities(m *corev1.ConfigMap) {
	if m.Data[AuthoritiesKey] == "" {
		c.fail("metadata.name", "is neither the mesh's configuration nor authorities of a BackendTLSPolicy, which are the ConfigMaps that are read",
			fmt.Sprintf("call it %s in namespace %s, or give data[%q]", MeshConfigName, cluster.GatewayNamespace, AuthoritiesKey))
		return
	}
	for _, key := range slices.Sorted(maps.Keys(m.Data)) {
		if key != AuthoritiesKey {
			c.fail(joinKey("data", key), "is not supported", "remove it; the certificates are in data of "+AuthoritiesKey)
		}
	}
}

func (c *checker) configMap(m *corev1.ConfigMap) {
	if !IsMeshConfig(c.key) {
		c.authorities(m)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(m.Data)) {
		if key != MeshConfigKey {
			c.fail(joinKey("data", key), "is not supported", "remove it; the mesh's configuration is in data."+MeshConfigKey)
		}
	}
	config, err := MeshConfig(m)
	if err != nil {
		c.fail("data."+MeshConfigKey, err.Error(), "write Istio's MeshConfig, for example extensionProviders: [...]")
		return
	}
	config.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if f.Name() != "extension_providers" && f.Name() != "default_config" {
			c.fail("data."+MeshConfigKey+"."+f.JSONName(), "is not supported",
				"remove it; of the mesh's configuration extensionProviders and defaultConfig are read")
		}
		return true
	})
	c.proxyConfig("data."+MeshConfigKey+".defaultConfig", config.GetDefaultConfig())
	seen := map[string]bool{}
	for i, p := range config.ExtensionProviders {
		at := fmt.Sprintf("data.%s.extensionProviders[%d]", MeshConfigKey, i)
		switch {
		case p.GetName() == "":
			c.fail(at+".name", "missing", "give it the name that policies use")
		case seen[p.GetName()]:
			c.fail(at+".name", fmt.Sprintf("%q is another provider's name too", p.GetName()), "use another name")
		}
		seen[p.GetName()] = true
		c.extensionProvider(at, p)
	}
}

func (c *checker) extensionProvider(at string, p *mesh.MeshConfig_ExtensionProvider) {
	switch {
	case p.GetEnvoyExtAuthzHttp() != nil:
		at, h := at+".envoyExtAuthzHttp", p.GetEnvoyExtAuthzHttp()
		c.authorizer(at, h)
		if h.PathPrefix != "" && !strings.HasPrefix(h.PathPrefix, "/") {
			c.fail(at+".pathPrefix", fmt.Sprintf("%q does not begin with /", h.PathPrefix), "write a path")
		}
		for _, l := range []struct {
			name   string
			values []string
		}{
			{"includeHeadersInCheck", h.IncludeHeadersInCheck}, //nolint:staticcheck // Deprecated, and still Istio's.
			{"includeRequestHeadersInCheck", h.IncludeRequestHeadersInCheck},
			{"headersToUpstreamOnAllow", h.HeadersToUpstreamOnAllow},
			{"headersToDownstreamOnDeny", h.HeadersToDownstreamOnDeny},
			{"headersToDownstreamOnAllow", h.HeadersToDownstreamOnAllow},
		} {
			for i, v := range l.values {
				c.wildcard(fmt.Sprintf("%s.%s[%d]", at, l.name, i), v)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(h.IncludeAdditionalHeadersInCheck)) {
			c.headerName(joinKey(at+".includeAdditionalHeadersInCheck", name), name)
		}
	case p.GetEnvoyExtAuthzGrpc() != nil:
		c.authorizer(at+".envoyExtAuthzGrpc", p.GetEnvoyExtAuthzGrpc())
	default:
		c.fail(at, "is no provider that is supported", "use envoyExtAuthzHttp or envoyExtAuthzGrpc")
	}
}

// authorizer is what both kinds of authorization servers have.
type authorizer interface {
	GetService() string
	GetPort() uint32
	GetStatusOnError() string
	GetIncludeRequestBodyInCheck() *mesh.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody
}

func (c *checker) authorizer(at string, a authorizer) {
	switch namespace, host, two := strings.Cut(a.GetService(), "/"); {
	case a.GetService() == "":
		c.fail(at+".service", "missing", "name the service of the authorization server")
	case strings.Contains(a.GetService(), "*") || two && (namespace == "" || host == "" || strings.Contains(host, "/")):
		c.fail(at+".service", fmt.Sprintf("%q is not a service", a.GetService()), "write its host, or namespace/host")
	}
	c.port(at+".port", int64(a.GetPort()))
	if s := a.GetStatusOnError(); s != "" {
		if n, err := strconv.Atoi(s); err != nil || http.StatusText(n) == "" || n < 200 {
			c.fail(at+".statusOnError", fmt.Sprintf("%q is not an HTTP status", s), "write for example 503")
		}
	}
	if b := a.GetIncludeRequestBodyInCheck(); b != nil && b.MaxRequestBytes == 0 {
		c.fail(at+".includeRequestBodyInCheck.maxRequestBytes", "missing", "say how much of a body the server is shown")
	}
}

// MeshConfig reads the configuration of the mesh. Errors say what is wrong with the text.
func MeshConfig(m *corev1.ConfigMap) (*mesh.MeshConfig, error) {
	out := &mesh.MeshConfig{}
	return out, readMesh(m.Data[MeshConfigKey], out)
}

// readMesh reads a message of Istio's mesh API from YAML. Errors say what is wrong with the text.
func readMesh(text string, out proto.Message) error {
	if len(text) > maxMeshConfig {
		return fmt.Errorf("is larger than %d bytes", maxMeshConfig)
	}
	var node yaml.Node
	if err := yaml.Unmarshal([]byte(text), &node); err != nil {
		return fmt.Errorf("is no YAML: %w", err)
	}
	if node.Kind == 0 {
		return nil
	}
	if hasAliases(&node) {
		// A few lines of them can stand for gigabytes.
		return errors.New("has aliases")
	}
	var value any
	if err := node.Decode(&value); err != nil {
		return fmt.Errorf("is no YAML: %w", err)
	}
	converted, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("cannot be written as JSON: %w", err)
	}
	if err := protojson.Unmarshal(converted, out); err != nil {
		// The library changes blanks at random, so that nobody compares the text, and counts lines of the JSON.
		problem := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "proto:"), "\u00a0", " ")
		if _, after, found := strings.Cut(problem, "): "); found {
			problem = after
		}
		return fmt.Errorf("is no %s: %s", out.ProtoReflect().Descriptor().Name(), strings.TrimSpace(problem))
	}
	return nil
}

func hasAliases(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, hasAliases)
}
