package registry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"heddle.io/heddle/control/objects"
	"heddle.io/heddle/control/store"
)

// ErrAddressesExhausted says that every virtual address of the range is in use.
var ErrAddressesExhausted = errors.New("no virtual address is left")

// reservedAddresses at the start of the service range are left to addresses that users choose, as Kubernetes does for
// the lower band of its range.
const reservedAddresses = 256

// Addresses are the virtual addresses of Services. The zero value has none.
type Addresses struct {
	// owners of an address: one, but for Services that something else than [Addresses.Assign] gave the same.
	owners map[netip.Addr][]objects.Key
	of     map[objects.Key]netip.Addr
}

// Set takes note of an object as it is now, nil for one that is gone. Other kinds than Services are passed over.
func (x *Addresses) Set(key objects.Key, o *objects.Object) {
	was, had := x.of[key]
	is, has := addressOf(o)
	if had == has && was == is {
		return
	}
	if had {
		delete(x.of, key)
		left := slices.DeleteFunc(slices.Clone(x.owners[was]), func(k objects.Key) bool { return k == key })
		if x.owners[was] = left; len(left) == 0 {
			delete(x.owners, was)
		}
	}
	if has {
		if x.of == nil {
			x.owners, x.of = map[netip.Addr][]objects.Key{}, map[objects.Key]netip.Addr{}
		}
		x.of[key] = is
		x.owners[is] = append(x.owners[is], key)
	}
}

// trial is what a batch of writes would make of addresses.
type trial struct {
	*Addresses
	// batch is what the writes before gave their Services; invalid for those that the batch deletes.
	batch map[objects.Key]netip.Addr
	taken map[netip.Addr]objects.Key
}

// mine is the address that a Service has.
func (t *trial) mine(key objects.Key) (netip.Addr, bool) {
	a, changed := t.batch[key]
	if !changed {
		a = t.of[key]
	}
	return a, a.IsValid()
}

// other is a Service besides that has an address.
func (t *trial) other(a netip.Addr, key objects.Key) (objects.Key, bool) {
	if owner, is := t.taken[a]; is && owner != key {
		return owner, true
	}
	for _, owner := range t.owners[a] {
		if has, is := t.mine(owner); is && has == a && owner != key {
			return owner, true
		}
	}
	return objects.Key{}, false
}

func (t *trial) give(key objects.Key, a netip.Addr) { t.batch[key], t.taken[a] = a, key }

// Assign gives every Service among the writes its virtual address (spec.clusterIP), and returns the writes with it. An existing service keeps
// the address it has; a new one gets the address that its name hashes to or the next free one, so that a service that is deleted and made
// again most often gets its old address back. An address that is taken, outside the range, or changed is an [*objects.Error]. It costs the
// writes; the addresses stay as they are.
func (x *Addresses) Assign(services netip.Prefix, writes []store.Write) ([]store.Write, error) {
	t := trial{Addresses: x, batch: map[objects.Key]netip.Addr{}, taken: map[netip.Addr]objects.Key{}}
	// What the batch deletes is free for what it adds.
	for _, w := range writes {
		if w.Object == nil {
			t.batch[w.Key] = netip.Addr{}
		}
	}
	out := append([]store.Write(nil), writes...)
	var errs []error
	// Addresses that users chose go first, so that an automatic one cannot take them.
	for _, w := range out {
		a, ok := addressOf(w.Object)
		if !ok {
			continue
		}
		fail := func(problem, remedy string) {
			errs = append(errs, &objects.Error{
				File: w.Object.Origin.File, Line: w.Object.FieldLine("spec.clusterIP"), Object: w.Key,
				Path: "spec.clusterIP", Problem: problem, Remedy: remedy,
			})
		}
		old, had := t.mine(w.Key)
		other, taken := t.other(a, w.Key)
		switch {
		case !services.Contains(a):
			fail(fmt.Sprintf("%s is outside the range of services, %s", a, services), "leave clusterIP out to get one")
		case had && old != a:
			fail(fmt.Sprintf("cannot be changed: it is %s", old), "leave clusterIP out, or delete the service first")
		case taken:
			fail(fmt.Sprintf("%s belongs to %s", a, other), "leave clusterIP out to get one")
		default:
			t.give(w.Key, a)
		}
	}
	for i, w := range out {
		if w.Object == nil || w.Object.Kind != objects.Service {
			continue
		}
		if _, has := addressOf(w.Object); has {
			continue
		}
		a, ok := t.mine(w.Key)
		if !ok {
			var err error
			taken := func(a netip.Addr) bool { _, is := t.other(a, w.Key); return is }
			if a, err = freeAddress(services, w.Key.Namespace+"/"+w.Key.Name, taken); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w in %s; delete services that are not used, or use a larger range",
					w.Key, err, services))
				continue
			}
			t.give(w.Key, a)
		}
		o := w.Object.DeepCopy()
		svc, isService := o.Resource.(*corev1.Service)
		if !isService {
			continue
		}
		svc.Spec.ClusterIP = a.String()
		out[i].Object = o
	}
	return out, errors.Join(errs...)
}

func addressOf(o *objects.Object) (netip.Addr, bool) {
	if o == nil {
		return netip.Addr{}, false
	}
	s, ok := o.Resource.(*corev1.Service)
	if !ok || s.Spec.ClusterIP == "" {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s.Spec.ClusterIP)
	return a, err == nil
}

// freeAddress finds the address that a name hashes to, or the next one that is not taken. Of a large range it leaves
// the first addresses alone, and always network and broadcast address.
func freeAddress(within netip.Prefix, name string, taken func(netip.Addr) bool) (netip.Addr, error) {
	bits := within.Addr().BitLen() - within.Bits()
	if bits < 2 {
		return netip.Addr{}, fmt.Errorf("%w: the range is too small", ErrAddressesExhausted)
	}
	// More than that many are never in use; in a larger IPv6 range only the first are given.
	bits = min(bits, 32)
	first, size := uint64(1), uint64(1)<<bits-2
	if size > 4*reservedAddresses {
		first, size = first+reservedAddresses, size-reservedAddresses
	}
	h := fnv.New64a()
	// A hash.Hash never fails to write.
	_, _ = h.Write([]byte(name))
	start := h.Sum64() % size
	for i := range size {
		if a := offset(within.Masked().Addr(), uint32(first+(start+i)%size)); !taken(a) {
			return a, nil
		}
	}
	return netip.Addr{}, ErrAddressesExhausted
}

// offset is the n-th address after the base of a range, whose last 32 bits (or as many as n needs) are zero.
func offset(base netip.Addr, n uint32) netip.Addr {
	b := base.AsSlice()
	last := b[len(b)-4:]
	binary.BigEndian.PutUint32(last, binary.BigEndian.Uint32(last)+n)
	a, _ := netip.AddrFromSlice(b)
	return a
}
