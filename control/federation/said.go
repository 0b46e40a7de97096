package federation

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "heddle.io/heddle/api/federation/federationv1"
	"heddle.io/heddle/control/registry"
)

// What is said on a stream, of a cluster, is the difference to what was said of it before on the same stream: both ends begin with nothing, so
// that a stream begins with all there is. Where they turn out to be apart, the stream ends, and the next one begins so.

// since is what a state has to say that another one, told before, has not; all of it with nil. It is nil when there is nothing.
func (s State) since(told *State) *pb.State {
	if told == nil {
		return &pb.State{Whole: true, About: s.about(), Services: exportMessages(s.Services.Sorted()), Count: uint32(s.Services.Len())}
	}
	m := &pb.State{Count: uint32(s.Services.Len())}
	set, gone := s.Services.Since(told.Services)
	size := 0
	for _, e := range set {
		size += e.Size()
	}
	for _, name := range gone {
		m.Gone = append(m.Gone, &pb.ExportName{Namespace: name.Namespace, Name: name.Name})
		size += len(name.Namespace) + len(name.Name)
	}
	switch {
	case size > 0 && size >= s.Services.Size():
		// So that nothing that differs is larger than what is taken of all there is.
		return s.since(nil)
	case !s.About.equal(told.About):
		m.About = s.about()
	case size == 0:
		return nil
	}
	m.Services = exportMessages(set)
	return m
}

// parts splits what is to be said into messages of bounded size.
func parts(m *pb.State) []*pb.State {
	services, gone := m.Services, m.Gone
	m.Services, m.Gone = nil, nil
	out, size := []*pb.State{m}, proto.Size(m)
	room := func(of proto.Message) *pb.State {
		// Its tag and its length are before it.
		n := proto.Size(of) + 8
		if size > 0 && size+n > partBytes {
			out, size = append(out, &pb.State{}), 0
		}
		size += n
		return out[len(out)-1]
	}
	for _, e := range services {
		last := room(e)
		last.Services = append(last.Services, e)
	}
	for _, name := range gone {
		last := room(name)
		last.Gone = append(last.Gone, name)
	}
	return out
}

// joined adds a further part of what is said to those before.
func joined(m, part *pb.State) *pb.State {
	m.Services, m.Gone = append(m.Services, part.GetServices()...), append(m.Gone, part.GetGone()...)
	return m
}

// with is the state after a message. Nothing that is malformed or out of bounds gets any further, and nothing that cannot be said of what
// is known. told says that something was told before on the same stream: without it, the message must be all there is, and what of that is
// in s already is not made anew. loopback says whether gateways may have loopback addresses.
func (s State) with(m *pb.State, told bool, trustDomain string, loopback bool) (State, error) {
	switch {
	case !m.GetWhole() && !told:
		return s, errors.New("it says what is different, and nothing was said before")
	case m.GetWhole() && len(m.GetGone()) > 0:
		return s, fmt.Errorf("it is all there is, and %d services are gone", len(m.GetGone()))
	case len(m.GetServices()) > maxServices || len(m.GetGone()) > maxServices:
		return s, fmt.Errorf("%d services, and %d that are gone, are more than %d", len(m.GetServices()), len(m.GetGone()), maxServices)
	}
	next := s
	if m.GetWhole() || m.GetAbout() != nil {
		var err error
		if next.About, err = readAbout(m.GetAbout(), loopback); err != nil {
			return s, err
		}
	}
	seen := make(map[registry.ExportName]bool, len(m.GetServices())+len(m.GetGone()))
	once := func(name registry.ExportName) error {
		if seen[name] {
			return fmt.Errorf("service %s is there twice", name)
		}
		seen[name] = true
		return nil
	}
	set := make([]*registry.Export, 0, len(m.GetServices()))
	for _, one := range m.GetServices() {
		e, err := readExport(one, trustDomain)
		if err == nil {
			err = once(e.Key())
		}
		if err != nil {
			return s, err
		}
		set = append(set, e)
	}
	gone := make([]registry.ExportName, 0, len(m.GetGone()))
	for _, one := range m.GetGone() {
		name := registry.ExportName{Namespace: one.GetNamespace(), Name: one.GetName()}
		if s.Services.Get(name) == nil {
			return s, fmt.Errorf("service %s is gone, and was not there", clip(name.String()))
		}
		if err := once(name); err != nil {
			return s, err
		}
		gone = append(gone, name)
	}
	if m.GetWhole() {
		next.Services = s.Services.Replaced(set)
	} else {
		next.Services = s.Services.With(set, gone)
	}
	if n, size := next.Services.Len(), next.Services.Size(); n > maxServices || size > maxStateBytes {
		return s, fmt.Errorf("%d services of %d bytes are more than %d, or than %d bytes", n, size, maxServices, maxStateBytes)
	} else if n != int(m.GetCount()) {
		return s, fmt.Errorf("there are %d services, and should be %d", n, m.GetCount())
	}
	return next, nil
}
