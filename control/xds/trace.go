package xds

import (
	"context"
	"log/slog"

	"heddle.io/heddle/control/peer"
)

// maxWords bounds what the log repeats of a proxy's words, in characters.
const maxWords = 256

// tracing says whether the log has a line for each thing that happens to a proxy. Who writes one asks first: there are many.
func (s *Server) tracing() bool { return s.log.Enabled(context.Background(), slog.LevelDebug) }

func (p *Proxy) traceJoined(fresh bool) {
	if p.server.tracing() {
		p.server.log.Debug("proxy connected", "proxy", peer.Words(p.id, maxWords, false), "fresh", fresh)
	}
}

func (p *Proxy) traceLeft() {
	if p.server.tracing() {
		p.server.log.Debug("proxy left", "proxy", peer.Words(p.id, maxWords, false), "connected", p.server.now().Sub(p.connected))
	}
}

func (p *Proxy) traceSent(r *response) {
	if p.server.tracing() {
		p.server.log.Debug("sent", "proxy", peer.Words(p.id, maxWords, false), "type", r.typ.String(), "version", r.change, "resources", len(r.resources), "removed", len(r.removed), "size", r.size)
	}
}

// traceAnswered says how a proxy answered the last response of a type.
func (p *Proxy) traceAnswered(t Type, refused bool) {
	if p.server.tracing() {
		sub := &p.types[t]
		p.server.log.Debug("answered", "proxy", peer.Words(p.id, maxWords, false), "type", t.String(), "version", sub.latest, "size", sub.size, "refused", refused, "after", p.server.now().Sub(sub.sent))
	}
}

func (p *Proxy) traceNotServed(typeURL string) {
	if p.server.tracing() {
		p.server.log.Debug("proxy asks for a type that is not served", "proxy", peer.Words(p.id, maxWords, false), "type", peer.Words(typeURL, maxWords, false))
	}
}
