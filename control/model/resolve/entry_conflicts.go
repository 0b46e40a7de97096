package resolve

import (
	"fmt"
	"strings"

	"heddle.io/heddle/control/model"
	"heddle.io/heddle/control/objects"
)

// Hosts, and addresses whose connections name no host, are one service's each: of several ServiceEntries the oldest has them
// that is in force. One that others keep out of force keeps nobody out.

// claims are the addresses and ports that a service needs for itself: where connections name no host, no two may have them.
func claims(s *model.Service) []string {
	var out []string
	for _, p := range s.Ports {
		if p.Protocol.IsHTTP() {
			continue
		}
		for _, l := range s.External.Entry.Listen {
			out = append(out, fmt.Sprintf("%s %d", l, p.Number))
		}
	}
	return out
}

// contest is what was found out of who is in force.
type contest struct {
	force map[*model.Service]bool
	// byHost and byClaim are entries' services by age.
	byHost, byClaim map[string][]*model.Service
}

func (c *contest) reset() {
	*c = contest{force: map[*model.Service]bool{}, byHost: map[string][]*model.Service{}, byClaim: map[string][]*model.Service{}}
}

// aged are the services for a host or a claim by age.
func (m *Model) aged(known map[string][]*model.Service, of hostIndex[*model.Service], name string) []*model.Service {
	all, is := known[name]
	if !is {
		all = sortedBy(of[name], m.age)
		known[name] = all
	}
	return all
}

// entryFor is the service of an entry that is in force for a host, nil for none.
func (m *Model) entryFor(host string) *model.Service {
	for _, s := range m.aged(m.external.contest.byHost, m.external.byHost, host) {
		if m.entryInForce(s) {
			return s
		}
	}
	return nil
}

// entryInForce says whether a service of an entry is in force: no other service has its host, and no older entry that is in
// force has the host or one of its claims.
func (m *Model) entryInForce(s *model.Service) bool {
	c := &m.external.contest
	in, known := c.force[s]
	if !known {
		in = m.global.made[s.Host] == nil && m.localByHost(s.Host) == nil && m.global.canonical[s.Host] == "" &&
			m.holder(m.aged(c.byHost, m.external.byHost, s.Host), s) == nil
		if in {
			_, by := m.claimed(s)
			in = by == nil
		}
		c.force[s] = in
	}
	return in
}

// holder is the first of these that is in force and older than a service, nil for none.
func (m *Model) holder(aged []*model.Service, than *model.Service) *model.Service {
	for _, s := range aged {
		if s.Source.Key == than.Source.Key {
			return nil
		}
		if m.entryInForce(s) {
			return s
		}
	}
	return nil
}

// claimed is what an older entry has of a service's claims, and whose it is.
func (m *Model) claimed(s *model.Service) (claim string, by *model.Service) {
	for _, claim := range claims(s) {
		if by := m.holder(m.aged(m.external.contest.byClaim, m.external.byClaim, claim), s); by != nil {
			return claim, by
		}
	}
	return "", nil
}

// spread adds to hosts whose service may be another those that entries have which these may keep out of force, or let in.
func (x *entryState) spread(hosts map[string]bool) {
	seen := map[string]bool{}
	queue := make([]string, 0, len(hosts))
	visit := func(claim string) {
		if seen[claim] {
			return
		}
		seen[claim] = true
		for _, s := range x.byClaim[claim] {
			if !hosts[s.Host] {
				hosts[s.Host] = true
				queue = append(queue, s.Host)
			}
		}
	}
	for host := range hosts {
		if len(x.byHost[host]) > 0 {
			queue = append(queue, host)
		}
	}
	for claim := range x.reclaimed {
		visit(claim)
	}
	clear(x.reclaimed)
	for len(queue) > 0 {
		host := queue[0]
		queue = queue[1:]
		for _, s := range x.byHost[host] {
			for _, claim := range claims(s) {
				visit(claim)
			}
		}
	}
}

// settleEntryConflicts says which entries others keep out of force.
func (m *Model) settleEntryConflicts() {
	x := &m.external
	concerned := map[objects.Key]bool{}
	for host := range x.contested {
		for key := range x.byHost[host] {
			concerned[key] = true
		}
	}
	clear(x.contested)
	for key := range concerned {
		m.say(key, saidConflict, nil)
		e := m.entries[key]
		if e == nil {
			continue
		}
		part, is := e.part.(*entryServices)
		if !is {
			continue
		}
		report := recorder{m, saidConflict}
		for _, s := range part.services {
			winner := m.services[s.Host]
			switch claim, by := m.claimed(s); {
			case winner != nil && winner.Source.Key != key:
				report.refuse(key, "Conflict", s.Source.Path, fmt.Sprintf("%s is a host of %s already", s.Host, winner.Source.Key),
					"delete one of the two, or put endpoints and ports into one object")
			case by != nil:
				report.refuse(key, "Conflict", "spec.addresses", fmt.Sprintf("%s is taken by the older %s", strings.Replace(claim, " ", " port ", 1), by.Source.Key),
					"give other addresses or another port, or leave addresses out to get a virtual one")
			case winner == nil && m.global.canonical[s.Host] != "":
				report.refuse(key, "Conflict", s.Source.Path, fmt.Sprintf("%s is a name of %s already", s.Host, m.global.canonical[s.Host]),
					"give another host")
			}
		}
	}
	x.contest.reset()
}
