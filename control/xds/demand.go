package xds

import (
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"heddle.io/heddle/control/peer"
)

// demand tells the source of listeners that a request subscribes to by name, and of those that it gives up, before the request is taken:
// what the source makes of it is there then. What the source keeps of a proxy is bounded by what it is told, so that a request
// with too much is refused first.
func (p *Proxy) demand(r *discovery.DeltaDiscoveryRequest) error {
	asked, givenUp, err := p.demanded(r)
	if err == nil && len(asked)+len(givenUp) > 0 {
		p.server.source.Demand(p, asked, givenUp)
	}
	return err
}

func (p *Proxy) demanded(r *discovery.DeltaDiscoveryRequest) (asked, givenUp []string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := &p.types[Listeners].names
	var fresh, gone nameSet
	for _, name := range r.GetResourceNamesSubscribe() {
		switch {
		case name == everything || names.has(name) || fresh.has(name):
		case len(name) > peer.MaxName:
			return nil, nil, p.longName()
		case names.len()+len(asked) == maxListeners:
			return nil, nil, p.tooManyListeners()
		default:
			fresh.add(name, true)
			asked = append(asked, name)
		}
	}
	for _, name := range r.GetResourceNamesUnsubscribe() {
		if (names.has(name) || fresh.has(name)) && !gone.has(name) {
			gone.add(name, true)
			givenUp = append(givenUp, name)
		}
	}
	return asked, givenUp, nil
}
