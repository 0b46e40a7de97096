package objects

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	mesh "istio.io/api/mesh/v1alpha1"

	"heddle.io/heddle/api/v1alpha1"
)

// AnnotationProxyConfig of a Workload holds Istio's ProxyConfig as YAML; of it, privateKeyProvider is read.
const AnnotationProxyConfig = "proxy.istio.io/config"

// minPollDelay is the least that Istio's API allows.
const minPollDelay = time.Millisecond

// KeyProvider does the private operations of a proxy's certificate: Istio's and Envoy's cryptomb.
type KeyProvider struct {
	// PollDelay is how long an operation waits for others at most.
	PollDelay time.Duration
	// Fallback has software take the key where the processor cannot do it.
	Fallback bool `json:",omitempty"`
}

// WorkloadKeyProvider reads a workload's annotation; nil when it asks for none, and the mesh's default holds. A workload that
// was admitted has no errors.
func WorkloadKeyProvider(w *v1alpha1.Workload) (*KeyProvider, error) {
	config := &mesh.ProxyConfig{}
	if err := readMesh(w.Annotations[AnnotationProxyConfig], config); err != nil {
		return nil, err
	}
	return keyProvider(config), nil
}

// MeshKeyProvider is the mesh's default (defaultConfig.privateKeyProvider), nil for none.
func MeshKeyProvider(config *mesh.MeshConfig) *KeyProvider {
	return keyProvider(config.GetDefaultConfig())
}

func keyProvider(config *mesh.ProxyConfig) *KeyProvider {
	cryptomb := config.GetPrivateKeyProvider().GetCryptomb()
	if cryptomb == nil {
		return nil
	}
	return &KeyProvider{PollDelay: cryptomb.GetPollDelay().AsDuration(), Fallback: cryptomb.GetFallback().GetValue()}
}

// proxyConfigAnnotation checks a workload's annotation.
func (c *checker) proxyConfigAnnotation(text string) {
	at := joinKey("metadata.annotations", AnnotationProxyConfig)
	config := &mesh.ProxyConfig{}
	if err := readMesh(text, config); err != nil {
		c.fail(at, err.Error(), "write Istio's ProxyConfig, for example privateKeyProvider: {cryptomb: {pollDelay: 0.01s}}")
		return
	}
	c.proxyConfig(at, config)
}

// proxyConfig checks a proxy's configuration, wherever it stands.
func (c *checker) proxyConfig(at string, config *mesh.ProxyConfig) {
	config.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if f.Name() != "private_key_provider" {
			c.fail(at+"."+f.JSONName(), "is not supported", "remove it; of a proxy's configuration privateKeyProvider is read")
		}
		return true
	})
	at += ".privateKeyProvider"
	provider := config.GetPrivateKeyProvider()
	switch cryptomb := provider.GetCryptomb(); {
	case provider == nil:
	case cryptomb == nil:
		c.fail(at, "must be cryptomb", "write cryptomb: {pollDelay: 0.01s}, or leave privateKeyProvider out: qat is not supported")
	case !cryptomb.GetPollDelay().IsValid() || cryptomb.GetPollDelay().AsDuration() < minPollDelay:
		c.fail(at+".cryptomb.pollDelay", fmt.Sprintf("must be a duration of %s or more", minPollDelay),
			"say how long an operation may wait for others, for example 0.01s")
	}
}
