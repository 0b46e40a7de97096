package federation

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/registry"
)

// announcement is what a primary tells of one cluster, itself included, as long as nothing of that changes. It is made anew
// then, so that who has looked at it need not look again. What is costly is made when the first one asks for it, of what differs
// from the one before.
type announcement struct {
	name      string
	state     State
	connected bool
	sharing   *resolve.Sharing
	// number is this announcement's own, of all there are and were.
	number uint64
	// former is the last offer that was made before, nil for none.
	former *resolve.Offer
	offer  atomic.Pointer[resolve.Offer]

	mu sync.Mutex
	// views by audience: those who may know the same services share one. kept is how large all that was written of them is.
	views map[string]*view
	kept  int
}

// maxWrittenBytes bounds what of one cluster's views is kept as it is sent. When it is more, all is forgotten, and made again for whom it is
// needed.
const maxWrittenBytes = 2 * maxStateBytes

// view is an announcement as one audience may know it.
type view struct {
	State
	// size is at least that of everything in it.
	size int
	// written is what of it is new to whom something was told before.
	written map[before]written
}

// before is what somebody was told of a cluster: the services of an announcement by its number, 0 for nothing.
type before struct {
	number    uint64
	services  *registry.Exports
	connected bool
}

// written are elements of the field peers of [pb.Update], encoded, none much larger than a part of an update; none where there is nothing
// to say. state says that there is more in them than whether the cluster is connected.
type written struct {
	pieces [][]byte
	state  bool
}

// view for a cluster.
func (a *announcement) view(to string) *view {
	a.mu.Lock()
	defer a.mu.Unlock()
	offer := a.offer.Load()
	if offer == nil {
		offer = a.sharing.Offer(a.state.Services, a.name, a.former)
		a.offer.Store(offer)
		a.views = map[string]*view{}
	}
	audience := offer.Audience(to)
	v := a.views[audience]
	if v == nil {
		v = a.with(offer.For(audience))
		a.views[audience] = v
	}
	return v
}

// with makes the view that has these services.
func (a *announcement) with(services *registry.Exports) *view {
	v := &view{State: State{About: a.state.About, Services: services}, written: map[before]written{}}
	v.size = proto.Size(v.about()) + services.Size()
	return v
}

// since is what of a view is new to whom something else was told last.
func (a *announcement) since(v *view, t telling) (written, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := before{t.number, t.Services, t.connected}
	if w, known := v.written[was]; known {
		return w, nil
	}
	told := &t.State
	if t.number == 0 {
		told = nil
	}
	w, size, err := a.write(v.since(told), t.connected)
	if err != nil {
		return written{}, err
	}
	if a.kept += size; a.kept > maxWrittenBytes {
		for _, other := range a.views {
			clear(other.written)
		}
		a.kept = size
	}
	v.written[was] = w
	return w, nil
}

// peersField is the number of the field peers of [pb.Update].
var peersField = (&pb.Update{}).ProtoReflect().Descriptor().Fields().ByName("peers").Number()

// write encodes what is said of the cluster, nil for no more than whether it is connected, where it was said to be or not. It makes several pieces of much: who hears
// nothing for long takes the sender for dead.
func (a *announcement) write(m *pb.State, connected bool) (w written, size int, err error) {
	var all []*pb.Peer
	switch {
	case m != nil:
		for i, part := range parts(m) {
			all = append(all, &pb.Peer{Cluster: a.name, State: part, Connected: a.connected && i == 0, Continued: i > 0})
		}
		w.state = true
	case a.connected != connected:
		all = []*pb.Peer{{Cluster: a.name, Connected: a.connected}}
	}
	for _, p := range all {
		text, err := proto.Marshal(p)
		if err != nil {
			return written{}, 0, err
		}
		piece := slices.Clip(protowire.AppendBytes(protowire.AppendTag(nil, peersField, protowire.BytesType), text))
		w.pieces, size = append(w.pieces, piece), size+len(piece)
	}
	return w, size, nil
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

// telling is what a member was told of a cluster, by the announcement of a number, 0 for nothing.
type telling struct {
	State
	number    uint64
	connected bool
	// size is how large everything is that the member may know: less is said where all is more than it takes.
	size int
}

// announce has something be told in place of something else, nil for nothing. The lock is held.
func (f *Federation) announce(former, now *announcement) *announcement {
	f.announcements++
	now.number, now.sharing = f.announcements, f.sharing
	if former != nil {
		now.former = cmp.Or(former.offer.Load(), former.former)
	}
	return now
}

// announcementOf a cluster that is known. The lock is held.
func (f *Federation) announcementOf(name string, e *entry) *announcement {
	if e.announced == nil || e.stale {
		e.announced, e.stale = f.announce(e.announced, &announcement{name: name, state: e.State, connected: e.connected}), false
	}
	return e.announced
}

// announceOwn gives what is told of this cluster itself.
func (f *Federation) announceOwn() *announcement {
	own := f.told()
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.announced; a == nil || a.sharing != f.sharing || !a.state.sameAs(own) {
		f.announced = f.announce(a, &announcement{name: f.config.Cluster.Name, state: own, connected: true})
	}
	return f.announced
}

// updates says what the member does not know yet, and takes it as sent.
func (f *Federation) updates(s *stream) []*pb.Update {
	w := updateWriter{current: &pb.Update{Full: !s.begun, Revision: s.revision + 1}}
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
	all := w.finish()
	if len(all) > 0 {
		s.revision++
	}
	return all
}

// look gives the other clusters that are due; nil is for one that is not there any more. The lock is held.
func (f *Federation) look(s *stream, d due) map[string]*announcement {
	out := make(map[string]*announcement, len(d.peers)+1)
	look := func(name string) {
		if e := f.peers[name]; name == s.cluster || name == f.config.Cluster.Name {
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
		for name := range f.peers {
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
		said, err := look[name].since(v, of)
		if err != nil {
			f.config.Log.Error("peer not told", "peer", name, "error", err)
			continue
		}
		if said.state {
			of.State, of.number = v.State, look[name].number
		}
		of.connected = look[name].connected
		s.peers[name] = of
		for _, piece := range said.pieces {
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
		w.current, w.size = &pb.Update{Revision: w.current.Revision}, 0
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
