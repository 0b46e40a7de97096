package objects

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	mesh "istio.io/api/mesh/v1alpha1"

	"heddle.io/heddle/api/v1alpha1"
)

// AnnotationProxyConfig of a Workload holds Istio's ProxyConfig as YAML; of it, privateKeyProvider is read, and of proxyMetadata what says which groups
// are captured (package interception).
const AnnotationProxyConfig = "proxy.istio.io/config"

// minPollDelay is the least that Istio's API allows.
const minPollDelay = time.Millisecond

// The providers of private operations that there are, by Istio's and Envoy's names.
const (
	CryptoMb = "cryptomb" // batches in the processor's vectors
	QAT      = "qat"      // a QuickAssist device
)

// KeyProvider does the private operations of a proxy's certificate.
type KeyProvider struct {
	// Name is CryptoMb or QAT.
	Name string
	// PollDelay is how long an operation waits for others at most (CryptoMb), or how often the device is asked for its
	// answers (QAT).
	PollDelay time.Duration
	// Fallback has software take the key where the processor cannot do it, or there is no device.
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
	name, p := methodOf(config.GetPrivateKeyProvider())
	if p == nil {
		return nil
	}
	return &KeyProvider{Name: name, PollDelay: p.GetPollDelay().AsDuration(), Fallback: p.GetFallback().GetValue()}
}

// method is what Istio's messages of all providers have in common.
type method interface {
	GetPollDelay() *durationpb.Duration
	GetFallback() *wrapperspb.BoolValue
}

// methodOf is the provider that is asked for, with its name; nil for none.
func methodOf(p *mesh.PrivateKeyProvider) (string, method) {
	switch {
	case p.GetCryptomb() != nil:
		return CryptoMb, p.GetCryptomb()
	case p.GetQat() != nil:
		return QAT, p.GetQat()
	default:
		return "", nil
	}
}

// proxyConfigAnnotation checks a workload's annotation.
func (c *checker) proxyConfigAnnotation(text string) {
	at := joinKey("metadata.annotations", AnnotationProxyConfig)
	config := &mesh.ProxyConfig{}
	if err := readMesh(text, config); err != nil {
		c.fail(at, err.Error(), "write Istio's ProxyConfig, for example privateKeyProvider: {cryptomb: {pollDelay: 0.01s}}")
		return
	}
	// Checked with the other annotations for what is captured.
	config.ProxyMetadata = nil
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
	if provider == nil {
		return
	}
	name, p := methodOf(provider)
	if p == nil {
		c.fail(at, "must be cryptomb or qat", "write cryptomb: {pollDelay: 0.01s} or qat: {pollDelay: 0.002s}, or leave privateKeyProvider out")
		return
	}
	if !p.GetPollDelay().IsValid() || p.GetPollDelay().AsDuration() < minPollDelay {
		c.fail(at+"."+name+".pollDelay", fmt.Sprintf("must be a duration of %s or more", minPollDelay),
			"say how long an operation may wait, for example 0.01s")
	}
}
