// Package storetest holds what every store must do, as tests, and a store in memory for the tests of others.
package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/seal"
	"heddle.io/heddle/control/store"
)

// maxBytes is the largest object, as etcd and Kubernetes have it.
const maxBytes = 1536 << 10

// remembered is how many changes of a kind the memory remembers for watches.
const remembered = 2 * store.QueueLength

// Memory is a store in memory. It keeps the contract as narrowly as it can: versions say nothing, positions are of one
// kind, and watches break when a test says so.
type Memory struct {
	mu      sync.Mutex
	count   int
	objects map[objects.Key]*objects.Object
	records map[string]kept
	kinds   map[string]*history
	fail    func(Operation) error
}

var _ store.Store = (*Memory)(nil)

// history is the changes of one kind.
type history struct {
	// first is the number of the oldest change that is kept.
	first   int
	events  []store.Event
	changed chan struct{}
	// broken is closed to break all watches.
	broken chan struct{}
}

// Operation is what a store is about to do, or has done.
type Operation struct {
	// Name is get, list, watch, write, status, put, all, open or delete; the last four are of records. Open is asked, by
	// those that hold Secrets alone, whether they can be decrypted: seal.ErrClosed says no.
	Name string
	// Key of the object, where it is one.
	Key objects.Key
	// Record's name, where it is one, and whether it holds Secrets.
	Record string
	Secret bool
	// Done says that it is done and will be said to have failed if the test says so.
	Done bool
}

// NewMemory makes an empty one.
func NewMemory() *Memory {
	return &Memory{objects: map[objects.Key]*objects.Object{}, records: map[string]kept{}, kinds: map[string]*history{}}
}

// Fail has every operation ask f, before and after it is done, whether it fails; nil ends that. f may be called at any
// time from several goroutines.
func (m *Memory) Fail(f func(Operation) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = f
}

func (m *Memory) failing(o Operation) error {
	m.mu.Lock()
	f := m.fail
	m.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(o)
}

// Interrupt breaks all watches. When forget is set, none can go on from where it was.
func (m *Memory) Interrupt(forget bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.kinds {
		close(h.broken)
		h.broken = make(chan struct{})
		if forget {
			h.first, h.events = h.first+len(h.events)+1, nil
		}
	}
}

func (m *Memory) history(group, kind string) *history {
	name := group + "/" + kind
	if m.kinds[name] == nil {
		m.kinds[name] = &history{changed: make(chan struct{}), broken: make(chan struct{})}
	}
	return m.kinds[name]
}

// next is a version that nothing can be read from.
func (m *Memory) next() objects.Version {
	m.count++
	return objects.Version(fmt.Sprintf("%08x", uint32(m.count)*2654435761))
}

func (m *Memory) record(e store.Event) {
	h := m.history(e.Key.Group, e.Key.Kind)
	e.Position = store.Position(strconv.Itoa(h.first + len(h.events)))
	h.events = append(h.events, e)
	if len(h.events) > remembered {
		h.first, h.events = h.first+1, h.events[1:]
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

// Get implements [store.Store].
func (m *Memory) Get(_ context.Context, key objects.Key) (*objects.Object, error) {
	if err := m.failing(Operation{Name: "get", Key: key}); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.objects[key]; o != nil {
		return o.DeepCopy(), nil
	}
	return nil, fmt.Errorf("%s: %w", key, store.ErrNotFound)
}

// Versions implements [store.Store].
func (m *Memory) Versions(_ context.Context, keys []objects.Key) ([]objects.Version, error) {
	for _, key := range keys {
		if err := m.failing(Operation{Name: "get", Key: key}); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	versions := make([]objects.Version, len(keys))
	for i, key := range keys {
		versions[i] = store.Absent
		if o := m.objects[key]; o != nil {
			versions[i] = o.Version
		}
	}
	return versions, nil
}

// List implements [store.Store].
func (m *Memory) List(_ context.Context, kind *objects.Kind, namespace string) ([]*objects.Object, store.Position, error) {
	if err := m.failing(Operation{Name: "list", Key: objects.Key{Group: kind.Group, Kind: kind.Kind, Namespace: namespace}}); err != nil {
		return nil, "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*objects.Object
	for _, o := range m.objects {
		if o.Kind == kind && (namespace == "" || o.GetNamespace() == namespace) {
			out = append(out, o.DeepCopy())
		}
	}
	slices.SortFunc(out, func(a, b *objects.Object) int { return a.Key().Compare(b.Key()) })
	h := m.history(kind.Group, kind.Kind)
	return out, store.Position(strconv.Itoa(h.first + len(h.events) - 1)), nil
}

// Watch implements [store.Store].
func (m *Memory) Watch(ctx context.Context, kind *objects.Kind, after store.Position) (<-chan store.Event, func() error) {
	events := make(chan store.Event, store.QueueLength)
	var failure error
	m.mu.Lock()
	broken := m.history(kind.Group, kind.Kind).broken
	m.mu.Unlock()
	go func() {
		defer close(events)
		failure = m.follow(ctx, kind, after, events, broken)
	}()
	return events, func() error { return failure }
}

func (m *Memory) follow(ctx context.Context, kind *objects.Kind, after store.Position, events chan<- store.Event, broken <-chan struct{}) error {
	if err := m.failing(Operation{Name: "watch", Key: objects.Key{Group: kind.Group, Kind: kind.Kind}}); err != nil {
		return err
	}
	number, err := strconv.Atoi(string(after))
	if err != nil {
		return fmt.Errorf("%q is no position: %w", after, store.ErrExpired)
	}
	for next := number + 1; ; {
		m.mu.Lock()
		h := m.history(kind.Group, kind.Kind)
		if next < h.first || next > h.first+len(h.events) {
			m.mu.Unlock()
			return store.ErrExpired
		}
		fresh, changed := slices.Clone(h.events[next-h.first:]), h.changed
		m.mu.Unlock()
		for _, e := range fresh {
			if e.Object != nil {
				e.Object = e.Object.DeepCopy()
			}
			select {
			case events <- e:
			default:
				return fmt.Errorf("the reader is %d events behind: %w", store.QueueLength, store.ErrExpired)
			}
		}
		next += len(fresh)
		select {
		case <-changed:
		case <-broken:
			return fmt.Errorf("%w: the watch broke", store.ErrUnavailable)
		case <-ctx.Done():
			return nil
		}
	}
}

// Write implements [store.Store].
func (m *Memory) Write(_ context.Context, w store.Write) (objects.Version, error) {
	if err := m.failing(Operation{Name: "write", Key: w.Key}); err != nil {
		return "", err
	}
	version, err := m.write(w)
	if err == nil {
		err = m.failing(Operation{Name: "write", Key: w.Key, Done: true})
	}
	if err != nil {
		return "", err
	}
	return version, nil
}

func (m *Memory) write(w store.Write) (objects.Version, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.objects[w.Key]
	if w.IfVersion == store.Absent && old != nil || w.IfVersion != "" && w.IfVersion != store.Absent && (old == nil || old.Version != w.IfVersion) {
		return "", fmt.Errorf("%s: %w", w.Key, store.ErrConflict)
	}
	if w.Object == nil {
		if old != nil {
			delete(m.objects, w.Key)
			m.record(store.Event{Key: w.Key})
		}
		return "", nil
	}
	// As if it had been on a disk.
	text, err := json.Marshal(w.Object.WithoutLines())
	if err != nil {
		return "", err
	}
	if len(text) > maxBytes {
		return "", fmt.Errorf("%s: %w", w.Key, store.ErrTooLarge)
	}
	o := new(objects.Object)
	if err := json.Unmarshal(text, o); err != nil {
		return "", err
	}
	o.Version = m.next()
	if o.Status, o.StatusVersion = (objects.Status{}), "never"; old != nil {
		o.Status, o.StatusVersion = old.Status, old.StatusVersion
	}
	m.objects[w.Key] = o
	m.record(store.Event{Key: w.Key, Object: o})
	return o.Version, nil
}

// SetStatus implements [store.Store].
func (m *Memory) SetStatus(_ context.Context, key objects.Key, status objects.Status, ifVersion objects.Version) (objects.Version, error) {
	if err := m.failing(Operation{Name: "status", Key: key}); err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.objects[key]
	switch {
	case old == nil:
		return "", fmt.Errorf("%s: %w", key, store.ErrNotFound)
	case ifVersion != "" && old.StatusVersion != ifVersion:
		return "", fmt.Errorf("status of %s: %w", key, store.ErrConflict)
	}
	o := *old
	o.Status, o.StatusVersion = status.DeepCopy(), m.next()
	m.objects[key] = &o
	m.record(store.Event{Key: key, Object: &o, StatusOnly: true})
	return o.StatusVersion, nil
}

// Export implements [store.Store].
func (m *Memory) Export(_ context.Context, f func(store.Exported) error) error {
	if err := m.failing(Operation{Name: "list"}); err != nil {
		return err
	}
	m.mu.Lock()
	all := slices.SortedFunc(maps.Values(m.objects), func(a, b *objects.Object) int { return a.Key().Compare(b.Key()) })
	m.mu.Unlock()
	for _, o := range all {
		bare := *o
		bare.Status, bare.Version, bare.StatusVersion = objects.Status{}, "", ""
		text, err := json.Marshal(&bare)
		if err != nil {
			return err
		}
		if err := f(store.Exported{Key: o.Key(), Content: text}); err != nil {
			return err
		}
	}
	return nil
}

// Import implements [store.Store].
func (m *Memory) Import(e store.Exported) (*objects.Object, error) {
	o := new(objects.Object)
	return o, json.Unmarshal(e.Content, o)
}

// Records implements [store.Store].
func (m *Memory) Records() store.Records { return memoryRecords{m} }

// Close implements [store.Store].
func (m *Memory) Close() error { return nil }

type memoryRecords struct{ m *Memory }

// kept is a record.
type kept struct {
	content []byte
	secret  bool
}

func (r memoryRecords) Put(_ context.Context, name string, content []byte, secret bool) error {
	if err := r.m.failing(Operation{Name: "put", Record: name, Secret: secret}); err != nil {
		return err
	}
	r.m.mu.Lock()
	r.m.records[name] = kept{bytes.Clone(content), secret}
	r.m.mu.Unlock()
	return r.m.failing(Operation{Name: "put", Record: name, Secret: secret, Done: true})
}

func (r memoryRecords) Get(_ context.Context, name string) ([]byte, error) {
	r.m.mu.Lock()
	k, ok := r.m.records[name]
	r.m.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("record %s: %w", name, store.ErrNotFound)
	}
	if k.secret {
		if err := r.m.failing(Operation{Name: "open", Record: name, Secret: true}); err != nil {
			return nil, fmt.Errorf("record %s: %w", name, err)
		}
	}
	return bytes.Clone(k.content), nil
}

func (r memoryRecords) All(ctx context.Context) (read map[string][]byte, closed map[string]error, err error) {
	if err := r.m.failing(Operation{Name: "all"}); err != nil {
		return nil, nil, err
	}
	r.m.mu.Lock()
	names := slices.Sorted(maps.Keys(r.m.records))
	r.m.mu.Unlock()
	read, closed = map[string][]byte{}, map[string]error{}
	for _, name := range names {
		content, err := r.Get(ctx, name)
		switch {
		case errors.Is(err, seal.ErrClosed):
			closed[name] = err
		case err != nil:
			return nil, nil, err
		default:
			read[name] = content
		}
	}
	return read, closed, nil
}

func (r memoryRecords) Delete(_ context.Context, name string) error {
	if err := r.m.failing(Operation{Name: "delete", Record: name}); err != nil {
		return err
	}
	r.m.mu.Lock()
	delete(r.m.records, name)
	r.m.mu.Unlock()
	return r.m.failing(Operation{Name: "delete", Record: name, Done: true})
}
