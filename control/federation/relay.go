package federation

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// announcement is what a primary tells of one cluster, itself included, as long as nothing of that changes. It is made anew
// then, so that who has looked at it need not look again. What is costly is made when the first one asks for it.
type announcement struct {
	name      string
	state     State
	connected bool
	sharing   *resolve.Sharing

	mu    sync.Mutex
	offer *resolve.Offer
	// views by audience: those who may know the same services share one. kept is how large they are together.
	views map[string]*view
	kept  int
}

// maxViewBytes bounds the views of one cluster that are kept. When they are more, all are forgotten, and made again for whom
// they are needed.
const maxViewBytes = 2 * maxStateBytes

// view is an announcement as one audience may know it.
type view struct {
	services *registry.Exports
	// pieces are elements of the field peers of [pb.Update], encoded, none much larger than a part of an update; size is all of
	// theirs.
	pieces [][]byte
	size   int
	hash   [sha256.Size]byte
	// err says why there are none.
	err error
}

// view for a cluster.
func (a *announcement) view(to string) *view {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.offer == nil {
		a.offer, a.views = a.sharing.Offer(a.state.Services, a.name, nil), map[string]*view{}
	}
	audience := a.offer.Audience(to)
	v := a.views[audience]
	if v == nil {
		v = a.with(a.offer.For(audience))
		if a.kept += v.size; a.kept > maxViewBytes {
			clear(a.views)
			a.kept = v.size
		}
		a.views[audience] = v
	}
	return v
}

// with makes the view that has these services.
func (a *announcement) with(services *registry.Exports) *view {
	state := a.state
	state.Services = services
	v := &view{services: services}
	v.encode(&pb.Peer{Cluster: a.name, State: state.message(), Connected: a.connected})
	return v
}

// peersField is the number of the field peers of [pb.Update].
var peersField = (&pb.Update{}).ProtoReflect().Descriptor().Fields().ByName("peers").Number()

// encode makes several pieces of a cluster with many services: who hears nothing for long takes the sender for dead.
func (v *view) encode(p *pb.Peer) {
	hash := sha256.New()
	services := p.State.Services
	p.State.Services = nil
	for size := proto.Size(p); ; {
		for len(services) > 0 && (size == 0 || size+proto.Size(services[0]) <= partBytes) {
			size += proto.Size(services[0])
			p.State.Services, services = append(p.State.Services, services[0]), services[1:]
		}
		// Deterministic: its hash tells whether it was sent.
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
		if err != nil {
			v.pieces, v.size, v.err = nil, 0, err
			return
		}
		piece := slices.Clip(protowire.AppendBytes(protowire.AppendTag(nil, peersField, protowire.BytesType), text))
		hash.Write(piece)
		v.pieces, v.size = append(v.pieces, piece), v.size+len(piece)
		if len(services) == 0 {
			hash.Sum(v.hash[:0])
			return
		}
		p, size = &pb.Peer{Cluster: p.Cluster, Continued: true, State: &pb.State{}}, 0
	}
}

// due names what a stream has to look at, because it changed since it last did.
type due struct {
	// all is everything there is or was, peers every cluster, whatever else is named.
	all, everyPeer bool
	peers          map[string]bool
	objects        map[objects.Key]bool
}

// peer is due. The federation's lock is held here and below.
func (d *due) peer(name string) {
	if d.peers == nil {
		d.peers = map[string]bool{}
	}
	d.peers[name] = true
}

func (d *due) object(key objects.Key) {
	if d.objects == nil {
		d.objects = map[objects.Key]bool{}
	}
	d.objects[key] = true
}

// telling is what a member was told of a cluster.
type telling struct {
	// hash of what was said, and how large everything is that the member may know: less is said where all is more than it takes.
	hash [sha256.Size]byte
	size int
}

// announcementOf a cluster of the book. The lock is held.
func (f *Federation) announcementOf(name string, e *entry) *announcement {
	if e.announced == nil {
		e.announced = &announcement{name: name, state: e.State, connected: e.connected, sharing: f.sharing}
	}
	return e.announced
}

// announceOwn gives what is told of this cluster itself.
func (f *Federation) announceOwn() *announcement {
	own := f.told()
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.announced; a == nil || a.sharing != f.sharing || !a.state.sameAs(own) {
		f.announced = &announcement{name: f.config.Cluster.Name, state: own, connected: true, sharing: f.sharing}
	}
	return f.announced
}

// updates says what the member does not know yet, and takes it as sent.
func (f *Federation) updates(s *stream) []*pb.Update {
	w := updateWriter{current: &pb.Update{Full: !s.begun}}
	// Its anchors may become others at any time, so that it is looked at whatever is due.
	own := f.announceOwn()
	replicas := map[objects.Key][]byte{}
	f.mu.Lock()
	d := s.due
	s.due = due{}
	look := f.look(s, d)
	keys := maps.Keys(d.objects)
	if d.all {
		keys = maps.Keys(f.replicas)
	}
	for key := range keys {
		replicas[key] = f.replicas[key].text
	}
	f.mu.Unlock()
	look[f.config.Cluster.Name] = own
	f.updatePeers(s, look, &w)
	for key, text := range replicas {
		before, was := s.objects[key]
		switch {
		case text == nil && was:
			delete(s.objects, key)
			u := w.room(len(key.Name))
			u.GoneObjects = append(u.GoneObjects, &pb.ObjectKey{Group: key.Group, Kind: key.Kind, Name: key.Name})
		case text != nil && !bytes.Equal(before, text):
			s.objects[key] = text
			u := w.room(len(text))
			u.Objects = append(u.Objects, text)
		}
	}
	s.begun = true
	return w.finish()
}

// look gives the other clusters that are due; nil is for one that is not there any more. The lock is held.
func (f *Federation) look(s *stream, d due) map[string]*announcement {
	out := make(map[string]*announcement, len(d.peers)+1)
	look := func(name string) {
		if e := f.book[name]; name == s.cluster || name == f.config.Cluster.Name {
			return // To the member itself, nothing is told of it.
		} else if e != nil {
			out[name] = f.announcementOf(name, e)
		} else if _, was := s.peers[name]; was {
			out[name] = nil
		}
	}
	for name := range d.peers {
		look(name)
	}
	if d.all || d.everyPeer || s.cut {
		for name := range f.book {
			look(name)
		}
	}
	return out
}

// updatePeers writes what differs of the clusters that were looked at.
func (f *Federation) updatePeers(s *stream, look map[string]*announcement, w *updateWriter) {
	views := f.views(s, look, w)
	if s.bytes > maxPeerBytes && !s.cut {
		// What is told of one depends on all others from now on.
		s.cut = true
		own := look[f.config.Cluster.Name]
		f.mu.Lock()
		look = f.look(s, due{everyPeer: true})
		f.mu.Unlock()
		look[f.config.Cluster.Name] = own
		views = f.views(s, look, w)
	}
	if s.cut {
		f.cut(s, look, views)
	}
	for name, v := range views {
		of := s.peers[name]
		if s.begun && of.hash == v.hash {
			continue
		}
		of.hash = v.hash
		s.peers[name] = of
		for _, piece := range v.pieces {
			w.piece(piece)
		}
	}
}

// views gives what the member may know of the clusters that were looked at, and says which are gone.
func (f *Federation) views(s *stream, look map[string]*announcement, w *updateWriter) map[string]*view {
	out := make(map[string]*view, len(look))
	for name, a := range look {
		of := s.peers[name]
		if a == nil {
			s.bytes -= of.size
			delete(s.peers, name)
			u := w.room(len(name))
			u.GonePeers = append(u.GonePeers, name)
			continue
		}
		v := a.view(s.cluster)
		if v.err != nil {
			f.config.Log.Error("peer not told", "peer", name, "error", v.err)
			continue
		}
		s.bytes += v.size - of.size
		of.size = v.size
		s.peers[name], out[name] = of, v
	}
	return out
}

// cut leaves out the services of the largest clusters when all together are more than a member takes, so that these do not
// keep the others away from it.
func (f *Federation) cut(s *stream, look map[string]*announcement, views map[string]*view) {
	s.cut = false
	names := slices.SortedFunc(maps.Keys(views), func(a, b string) int {
		return cmp.Or(cmp.Compare(views[a].size, views[b].size), cmp.Compare(a, b))
	})
	sum := 0
	for _, name := range names {
		if sum += views[name].size; sum > maxPeerBytes {
			s.cut = true
			f.counters.add(countPeersCut)
			f.config.Log.Error("a cluster's services are not told to a member: all together are too large", "cluster", name, "member", s.cluster, "most", maxPeerBytes)
			views[name] = look[name].with(nil)
		}
	}
}

// updateWriter splits an update into parts of bounded size.
type updateWriter struct {
	done    []*pb.Update
	current *pb.Update
	size    int
}

// room is the part with room for so many bytes more.
func (w *updateWriter) room(bytes int) *pb.Update {
	if w.size > 0 && w.size+bytes > partBytes {
		w.current.More = true
		w.done = append(w.done, w.current)
		w.current, w.size = &pb.Update{}, 0
	}
	w.size += bytes
	return w.current
}

// piece writes a part of what is told of a cluster.
func (w *updateWriter) piece(text []byte) {
	m := w.room(len(text)).ProtoReflect()
	// Fields that a message does not know are written as they are: on the wire, this is the field that was encoded once for all
	// who are told the same. One alone is not even copied.
	if before := m.GetUnknown(); len(before) > 0 {
		text = append(before, text...)
	}
	m.SetUnknown(text)
}

// finish gives all parts; none when there is nothing to say.
func (w *updateWriter) finish() []*pb.Update {
	if !w.current.GetFull() && w.size == 0 {
		return nil
	}
	return append(w.done, w.current)
}
