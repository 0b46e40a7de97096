package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"heddle.io/heddle/control/durable/table"
	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/model/resolve"
	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/push"
	"heddle.io/heddle/control/stage"
	"heddle.io/heddle/control/translate"
)

// staging takes changes that concern clients and servers through the mesh in steps (see [stage.Machine]). A generation is
// what the objects came to at a time, and its clients go by that until servers accept the next one. Only the loop that
// puts models into force may use it, [staging.view] apart.
type staging struct {
	file   stageFile
	limits stage.Limits
	log    *slog.Logger

	machine *stage.Machine
	newest  stage.Generation
	meshes  map[stage.Generation]*model.Mesh
	// seen is what clients of a former generation have in the place of the wanted one.
	seen model.ClientsView
	// before are objects as they were in a generation that some clients still go by, of those that have changed since; nil for
	// one that there was not.
	before map[stage.Generation]left
	// objects are those that the newest generation is made of, and that are held back (see [resolve.HeldBack]).
	objects map[objects.Key]*objects.Object
	// unkept are those of them that the file does not hold as they are, nil for one that is gone; keptWhole says that it holds
	// all others, and keptFollowed is for which generations it holds what was before.
	unkept       map[objects.Key]*objects.Object
	keptWhole    bool
	keptFollowed followed
}

// noGeneration has what is kept of generations written anew.
const noGeneration = -1

// followed are the generations beside the newest that clients may go by; zero for none.
type followed struct{ clients, former stage.Generation }

func newStaging(file string, limit time.Duration, log *slog.Logger) *staging {
	if limit == 0 {
		limit = stage.DefaultLimit
	}
	return &staging{file: stageFile{path: file}, limits: stage.Limits{Answer: limit, Anew: limit, Connect: translate.ConnectTimeout}, log: log}
}

// stage has what the objects come to take its way to the proxies; changed are those that changed, nil for one that is gone.
// Only the loop may call it, as all of the following.
func (c *Controller) stage(mesh *model.Mesh, changed map[objects.Key]*objects.Object) {
	if c.staging.machine == nil {
		c.staging.start(time.Now(), mesh, changed, c.rebuild)
		return
	}
	c.staging.want(time.Now(), mesh, changed)
}

// rebuild is the mesh with objects as they were. Hosts that only those have keep the virtual addresses that they had.
func (c *Controller) rebuild(were map[objects.Key]*objects.Object) *model.Mesh {
	return c.model.With(were, func(hosts []string) map[string]netip.Addr {
		addresses, err := c.globals.Assign(hosts)
		if err != nil {
			c.log.Error("names of before the change that is under way have no address", "error", err)
			return nil
		}
		return addresses
	})
}

// push sends what is in force.
func (c *Controller) push(u push.Update) {
	c.staging.keep()
	u.Clients, u.Servers = c.staging.inForce()
	if c.shown == nil || !model.SameNames(c.shown, u.Clients) {
		c.setNames(u.Clients)
	}
	c.shown = u.Clients
	c.staging.machine.Pushed(c.pusher.Update(u))
}

// step goes on with a change that is under way, as far as proxies have answered.
func (c *Controller) step() {
	now := time.Now()
	if c.staging.underWay() {
		proxies := c.proxiesOwing()
		for c.staging.look(now, proxies) {
			c.push(push.Update{Revision: c.xds.Revision(), Again: slices.Collect(maps.Keys(c.stagedNow().objects))})
			proxies = c.proxiesOwing()
		}
	}
	view := c.staging.view(now)
	c.mu.Lock()
	c.staged = view
	c.mu.Unlock()
	signal(c.restatus)
}

// stagedNow is how far the change is that is under way.
func (c *Controller) stagedNow() stageView {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.staged
}

// proxiesOwing are all proxies, with what they have not taken. Those that run without a stream go on with what they have.
func (c *Controller) proxiesOwing() []stage.Proxy {
	out := c.pusher.Owed()
	connected := make(map[string]bool, len(out))
	for _, p := range out {
		connected[p.ID] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, report := range c.reports {
		for _, one := range report.keptReport {
			if r := one.Replica; r != nil && r.State.ProxyPID != 0 && !connected[r.NodeID] {
				out = append(out, stage.Proxy{ID: r.NodeID, Owes: 1, Serves: !r.Gateway})
			}
		}
	}
	return out
}

// effect that a mesh has in place of the one that clients go by.
func effect(mesh, clients *model.Mesh) stage.Effect {
	switch {
	case !mesh.ConcernsServers(clients):
		return stage.Alone
	case mesh.Covers(clients):
		return stage.Adds
	}
	return stage.Replaces
}

// start begins with what is wanted now and the objects that it is made of. What a former controller left is made into a mesh
// by rebuild, which is given objects to have in place of those that are there; nil for none.
func (s *staging) start(now time.Time, mesh *model.Mesh, all map[objects.Key]*objects.Object, rebuild func(map[objects.Key]*objects.Object) *model.Mesh) {
	s.objects = maps.Clone(all)
	maps.DeleteFunc(s.objects, func(key objects.Key, o *objects.Object) bool { return o == nil || !resolve.HeldBack(key) })
	s.unkept, s.keptWhole = maps.Clone(s.objects), false
	s.newest, s.meshes, s.before = 1, map[stage.Generation]*model.Mesh{1: mesh}, map[stage.Generation]left{}
	s.machine = stage.New(s.limits, s.newest, 0)
	were, err := s.file.read(s.objects)
	if err != nil {
		s.log.Error("changes that were under way go into force at once: what was kept of them cannot be read", "error", err)
		return
	}
	if were.newest == nil {
		return
	}
	s.unkept = make(map[objects.Key]*objects.Object, len(were.newest))
	for key := range were.newest {
		s.unkept[key] = s.objects[key]
	}
	s.keptWhole, s.keptFollowed = true, followed{clients: noGeneration, former: noGeneration}
	clients, former := were.clients, were.former
	if len(clients)+len(former) == 0 {
		return
	}
	going := rebuild(clients)
	if former == nil && !mesh.ConcernsServers(going) {
		return
	}
	const formerOne, clientsOne, wantedOne = 1, 2, 3
	s.newest = wantedOne
	s.meshes = map[stage.Generation]*model.Mesh{clientsOne: going, wantedOne: mesh}
	s.before[clientsOne] = clients
	s.machine = stage.New(s.limits, clientsOne, 0)
	if former != nil {
		s.meshes[formerOne], s.before[formerOne] = rebuild(former), former
		s.machine = stage.New(s.limits, clientsOne, formerOne)
	}
	s.machine.Want(now, wantedOne, effect(mesh, going))
	s.tidy()
}

// sameVersion says whether two objects are the same one, unchanged, or neither is there.
func sameVersion(a, b *objects.Object) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Version == b.Version
}

// want has another mesh in place of the one that was wanted; changed are the objects that make the difference as they are
// now, nil for those that are gone.
func (s *staging) want(now time.Time, mesh *model.Mesh, changed map[objects.Key]*objects.Object) {
	wanted := s.machine.InForce().Wanted
	if mesh.ConcernsServers(s.meshes[wanted]) {
		s.newest++
		s.meshes[s.newest] = mesh
		s.machine.Want(now, s.newest, effect(mesh, s.meshes[s.machine.InForce().Clients]))
	} else {
		// It takes the place of the generation: nothing is to be waited for that is not already.
		s.meshes[wanted] = mesh
	}
	in := s.machine.InForce()
	for key, o := range changed {
		if !resolve.HeldBack(key) || sameVersion(o, s.objects[key]) {
			continue
		}
		s.unkept[key] = o
		for _, g := range in.Accepted {
			if s.before[g] == nil {
				s.before[g] = left{}
			}
			if _, known := s.before[g][key]; !known {
				s.before[g][key] = s.objects[key]
			}
		}
		if s.objects[key] = o; o == nil {
			delete(s.objects, key)
		}
	}
	s.tidy()
}

// inForce gives the meshes that clients and servers go by.
func (s *staging) inForce() (clients, servers *model.Mesh) {
	in := s.machine.InForce()
	clients = s.meshes[in.Wanted]
	if in.Clients != in.Wanted {
		clients = s.seen.Of(clients, s.meshes[in.Clients])
	} else {
		s.seen = model.ClientsView{}
	}
	servers = s.meshes[in.Wanted]
	if len(in.Accepted) == 0 {
		return clients, servers
	}
	both := *servers
	for _, g := range in.Accepted {
		both.Accepted = append(both.Accepted, s.meshes[g])
	}
	return clients, &both
}

// underWay says whether a change is.
func (s *staging) underWay() bool {
	in := s.machine.InForce()
	return in.Clients != in.Wanted || len(in.Accepted) > 0
}

// look takes note of what proxies owe, and says whether something else is in force by that.
func (s *staging) look(now time.Time, proxies []stage.Proxy) bool {
	before := s.machine.Status(now)
	changed := s.machine.Look(now, proxies)
	if changed {
		s.tidy()
	}
	after := s.machine.Status(now)
	if without := slices.DeleteFunc(slices.Clone(after.Without), func(id string) bool { return slices.Contains(before.Without, id) }); len(without) > 0 {
		s.log.Warn("a change goes on without proxies that do not take it", "limit", s.limits.Answer, "proxies", without)
	}
	if before.Step != after.Step {
		s.log.Info("change of what servers accept", "step", after.Step)
	}
	return changed
}

// tidy forgets generations that nobody goes by.
func (s *staging) tidy() {
	in := s.machine.InForce()
	live := append([]stage.Generation{in.Wanted}, in.Accepted...)
	maps.DeleteFunc(s.meshes, func(g stage.Generation, _ *model.Mesh) bool { return !slices.Contains(live, g) })
	maps.DeleteFunc(s.before, func(g stage.Generation, _ left) bool { return !slices.Contains(in.Accepted, g) })
}

// keep writes what the next controller needs to know, before proxies are sent what it is about.
func (s *staging) keep() {
	in := s.machine.InForce()
	now := followed{former: in.Former}
	if in.Clients != in.Wanted {
		now.clients = in.Clients
	}
	if s.keptWhole && len(s.unkept) == 0 && now == s.keptFollowed {
		return
	}
	write := func() error {
		return s.file.write(stageChange{
			newest: s.unkept, whole: !s.keptWhole,
			clients: s.before[now.clients], former: s.before[now.former], moved: !s.keptWhole || now != s.keptFollowed,
		})
	}
	err := write()
	if errors.Is(err, table.ErrDamaged) {
		s.log.Warn("what was kept of changes is damaged, and written anew", "error", err)
		s.unkept, s.keptWhole = maps.Clone(s.objects), false
		err = write()
	}
	if err != nil {
		s.log.Warn("a restart would put the change that is under way into force at once: it cannot be kept", "error", err)
		return
	}
	s.unkept, s.keptWhole, s.keptFollowed = map[objects.Key]*objects.Object{}, true, now
}

// stageView is what statuses say of a change.
type stageView struct {
	stage.Status
	limit time.Duration
	// objects are those that the change is about.
	objects map[objects.Key]bool
}

func (s *staging) view(now time.Time) stageView {
	v := stageView{Status: s.machine.Status(now), limit: s.limits.Answer, objects: map[objects.Key]bool{}}
	for _, before := range s.before {
		for key, o := range before {
			v.objects[key] = v.objects[key] || !sameVersion(s.objects[key], o)
		}
	}
	return v
}

// says is whether statuses say the same of two views.
func (v stageView) says(other stageView) bool {
	return v.message() == other.message() && maps.Equal(v.objects, other.objects)
}

// message says how far the change is, empty when nothing is under way.
func (v stageView) message() string {
	var text string
	switch v.Step {
	case stage.Accepting:
		text = "servers accept it as well, and clients go by what was before until all of them do"
	case stage.Switching:
		text = "clients go by it, and servers accept what was before as well until all of them do, and connections that were begun before are made"
	default:
		return ""
	}
	if len(v.Awaited) > 0 {
		text += fmt.Sprintf("; for at most %s, this waits for %s", v.limit, names(v.Awaited))
	}
	return text + v.without()
}

// without says whom the change did not wait for.
func (v stageView) without() string {
	if len(v.Without) == 0 {
		return ""
	}
	return fmt.Sprintf("; it went on after %s without %s", v.limit, names(v.Without))
}

// names bounds a list of proxies.
func names(ids []string) string {
	const most = 5
	out := make([]string, 0, most)
	for _, id := range ids[:min(len(ids), most)] {
		out = append(out, proxyName(id))
	}
	text := strings.Join(out, ", ")
	if len(ids) > most {
		text += fmt.Sprintf(" and %d more", len(ids)-most)
	}
	return text
}
