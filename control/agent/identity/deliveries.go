package identity

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"heddle.io/heddle/control/peer"
)

var errRefused = errors.New("it refused secret")

// deliveries follow which secrets a proxy was sent and has acknowledged. A secret that was published is in force only
// when every stream that carries it has answered.
type deliveries struct {
	mu      sync.Mutex
	streams map[streamID]map[string]*delivery
	// changed closes at the next answer or end of a stream.
	changed chan struct{}
}

// streamID tells streams apart: incremental and state-of-the-world ones are counted separately.
type streamID struct {
	incremental bool
	number      int64
}

// delivery of one secret over one stream.
type delivery struct {
	nonce       string
	sent, taken string
	refused     string
}

func newDeliveries() *deliveries {
	return &deliveries{streams: map[streamID]map[string]*delivery{}, changed: make(chan struct{})}
}

// callbacks of the server that sends the secrets, and refuses what is not admitted.
func (d *deliveries) callbacks(requests *secretRequests) serverv3.Callbacks {
	closed := func(stream streamID) {
		d.close(stream)
		requests.close(stream)
	}
	return serverv3.CallbackFuncs{
		StreamClosedFunc:      func(number int64, _ *corev3.Node) { closed(streamID{false, number}) },
		DeltaStreamClosedFunc: func(number int64, _ *corev3.Node) { closed(streamID{true, number}) },
		StreamRequestFunc: func(number int64, r *discoveryv3.DiscoveryRequest) error {
			if err := requests.whole(number, r); err != nil {
				return err
			}
			d.answer(streamID{false, number}, r.GetResponseNonce(), peer.Words(r.GetErrorDetail().GetMessage(), maxReason, true))
			return nil
		},
		StreamDeltaRequestFunc: func(number int64, r *discoveryv3.DeltaDiscoveryRequest) error {
			if err := requests.delta(number, r); err != nil {
				return err
			}
			d.answer(streamID{true, number}, r.GetResponseNonce(), peer.Words(r.GetErrorDetail().GetMessage(), maxReason, true))
			return nil
		},
		StreamResponseFunc: func(_ context.Context, number int64, _ *discoveryv3.DiscoveryRequest, r *discoveryv3.DiscoveryResponse) {
			d.send(streamID{false, number}, r.GetNonce(), r.GetResources())
		},
		StreamDeltaResponseFunc: func(number int64, _ *discoveryv3.DeltaDiscoveryRequest, r *discoveryv3.DeltaDiscoveryResponse) {
			var secrets []*anypb.Any
			for _, resource := range r.GetResources() {
				secrets = append(secrets, resource.GetResource())
			}
			d.send(streamID{true, number}, r.GetNonce(), secrets)
		},
	}
}

func (d *deliveries) send(stream streamID, nonce string, secrets []*anypb.Any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	carried := d.streams[stream]
	if carried == nil {
		carried = map[string]*delivery{}
		d.streams[stream] = carried
	}
	for _, packed := range secrets {
		secret := &tlsv3.Secret{}
		if packed.UnmarshalTo(secret) != nil {
			continue
		}
		if carried[secret.GetName()] == nil {
			carried[secret.GetName()] = &delivery{}
		}
		one := carried[secret.GetName()]
		one.nonce, one.sent, one.refused = nonce, content(secret), ""
	}
}

// answer takes a proxy's word on what it was sent last; reason is empty when it accepts.
func (d *deliveries) answer(stream streamID, nonce, reason string) {
	if nonce == "" {
		// The first request of a stream answers nothing.
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.streams[stream] {
		if one.nonce != nonce {
			continue
		}
		if one.refused = reason; reason == "" {
			one.taken = one.sent
		}
	}
	d.announce()
}

func (d *deliveries) close(stream streamID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.streams, stream)
	d.announce()
}

func (d *deliveries) announce() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// settleTimeout is how long a proxy may take to accept new secrets.
const settleTimeout = 5 * time.Second

// settle waits until every stream has taken the secrets that it carries. A proxy that does not run has none.
func (d *deliveries) settle(ctx context.Context, secrets ...*tlsv3.Secret) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	want := map[string]string{}
	for _, s := range secrets {
		want[s.GetName()] = content(s)
	}
	for {
		missing, refused, changed := d.missing(want)
		switch {
		case refused != "":
			return fmt.Errorf("the proxy goes on with an earlier one: %w %s: %s", errRefused, missing, refused)
		case missing == "":
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the proxy goes on with an earlier one: it has not acknowledged secret %s", missing)
		case <-changed:
		}
	}
}

// missing names a secret that is not in force yet, with the proxy's reason if it refused it.
func (d *deliveries) missing(want map[string]string) (name, refused string, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, carried := range d.streams {
		for name, one := range carried {
			switch content, wanted := want[name]; {
			case !wanted || one.taken == content:
			case one.sent == content:
				return name, one.refused, d.changed
			default:
				return name, "", d.changed
			}
		}
	}
	return "", "", d.changed
}

// content is what tells two secrets of one name apart.
func content(s *tlsv3.Secret) string {
	return string(s.GetTlsCertificate().GetCertificateChain().GetInlineBytes()) + string(s.GetValidationContext().GetTrustedCa().GetInlineBytes())
}
