// Package capture brings a workload's TCP traffic to its proxy by eBPF programs (folder bpf/), without a packet filter: what its
// programs dial is redirected while they connect, what others dial is given to the proxy's listening socket, and the proxy
// is told where either was to go as the packet filter would tell it (SO_ORIGINAL_DST). What its programs ask for names, by TCP or UDP,
// is brought to the port of the cluster's DNS server. The rules are those of [network.Capture] and [network.Host]; docs/design/0035
// has them side by side.
//
// Programs and maps are pinned: they go on without the agent, and the next one takes them over.
package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/pinned"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/interception"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package capture -target bpfel -no-global-types -type count -type block_count program ../../../bpf/capture.bpf.c -- -O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu

// attachments are the programs on the cluster's control group. Those that others need come first: a connection that is redirected
// must be told of, and answered for; a datagram that is redirected has an answer. The last one says that all are there
// ([IsAttached]), also of a version of which there were fewer.
var attachments = []pinned.Attachment{
	{Program: "watched", Kind: ebpf.AttachCGroupSockOps},
	{Program: "original", Kind: ebpf.AttachCGroupGetsockopt},
	{Program: "getsockname4", Kind: ebpf.AttachCgroupInet4GetSockname},
	{Program: "getsockname6", Kind: ebpf.AttachCgroupInet6GetSockname},
	{Program: "getpeername4", Kind: ebpf.AttachCgroupInet4GetPeername},
	{Program: "getpeername6", Kind: ebpf.AttachCgroupInet6GetPeername},
	{Program: "recvmsg4", Kind: ebpf.AttachCGroupUDP4Recvmsg},
	{Program: "recvmsg6", Kind: ebpf.AttachCGroupUDP6Recvmsg},
	{Program: "sendmsg4", Kind: ebpf.AttachCGroupUDP4Sendmsg},
	{Program: "sendmsg6", Kind: ebpf.AttachCGroupUDP6Sendmsg},
	{Program: "connect4", Kind: ebpf.AttachCGroupInet4Connect},
	{Program: "connect6", Kind: ebpf.AttachCGroupInet6Connect},
}

// steered is the program that each workload has its own of.
const steered = "steered"

// steeredPrefix starts the names of the pins of its links; the cookie of the network namespace follows.
const steeredPrefix = "steered-"

// Capture is what is attached. Make one with [Attach].
type Capture struct {
	dir     string
	objects *ebpf.Collection
	links   []link.Link
	// changing guards the maps against two changes of workloads at once.
	changing sync.Mutex
}

// Workload is what is to be captured.
type Workload struct {
	// Netns is the file of its network namespace.
	Netns string
	// Address is its own, and DNS the one whose port 53 it asks for names; of one family. What goes there goes to
	// [cluster.PortDNS] of the same address instead, where the cluster's server listens.
	Address, DNS netip.Addr
	// ProxyGroup is the directory of its proxy's control group (version 2), below the one of [Attach].
	ProxyGroup string
	// Ports are declared: connections to them go to the proxy whether or not a program of the workload listens there. Those to
	// other ports do as long as one does.
	Ports []uint16
	// Rules leave some of it alone.
	Rules interception.Rules
}

// Attach loads the programs and ties them to a control group (a directory of cgroup version 2), where they do nothing before
// [Capture.Add]. What an earlier Attach left in dir is taken over, with its workloads and connections; dir becomes the mount point of a
// BPF file system.
//
// The error says what the machine lacks. Nothing is attached then that was not before.
func Attach(dir, cgroup string) (*Capture, error) { return attachOf(dir, cgroup, roomy) }

// attachOf is [Attach] with other bounds.
func attachOf(dir, cgroup string, limits bounds) (*Capture, error) {
	if err := pinned.Mount(dir); err != nil {
		return nil, err
	}
	c, err := attach(dir, cgroup, limits)
	if err != nil {
		if !IsAttached(dir) {
			// The first one: nothing of it stays.
			err = errors.Join(err, Detach(dir))
		}
		return nil, err
	}
	return c, nil
}

// Probe says what this machine lacks for [Attach], which it tries but for the control group. It leaves nothing.
func Probe() error {
	spec, err := specification(roomy)
	if err != nil {
		return err
	}
	objects, err := load(spec, nil)
	if err != nil {
		return err
	}
	objects.Close()
	return nil
}

// readProgram reads it once: each network namespace has one that is loaded for it alone.
var readProgram = sync.OnceValues(loadProgram)

func specification(limits bounds) (*ebpf.CollectionSpec, error) {
	read, err := readProgram()
	if err != nil {
		return nil, fmt.Errorf("read the capture programs: %w", err)
	}
	spec := read.Copy()
	for name, value := range map[string]uint32{
		"outbound_port": cluster.PortOutbound, "inbound_port": cluster.PortInbound, "health_port": cluster.PortHealth, "metrics_port": cluster.PortMetrics,
		"dns_port": cluster.PortDNS, "max_pending": limits.pending, "max_blocks": limits.blocks,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s of the capture programs: %w", name, err)
		}
	}
	return spec, nil
}

// bounds of what programs may have noted.
type bounds struct {
	// pending are connections of one workload that its proxy has not taken.
	pending uint32
	// blocks of ports, of all workloads, on which programs have listened; one has as many as are free.
	blocks uint32
}

// roomy is a 64th of what there is room for, and seven eighths.
var roomy = bounds{pending: 4096, blocks: 57344}

func load(spec *ebpf.CollectionSpec, kept map[string]*ebpf.Map) (*ebpf.Collection, error) {
	objects, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: kept})
	switch {
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return nil, fmt.Errorf("the capture programs of another version of Heddle are attached, and go on; `heddle down --keep-data` and `heddle up` replace them: %w", err)
	case err != nil:
		return nil, fmt.Errorf("the kernel does not take the capture programs; they need Linux 5.18, BTF and CONFIG_CGROUP_BPF, and CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: %w", err)
	}
	return objects, nil
}

func attach(dir, cgroup string, limits bounds) (*Capture, error) {
	spec, err := specification(limits)
	if err != nil {
		return nil, err
	}
	kept, err := pinned.Maps(dir, spec)
	if err != nil {
		return nil, err
	}
	defer pinned.Close(kept)
	objects, err := load(spec, kept)
	if err != nil {
		return nil, err
	}
	c := &Capture{dir: dir, objects: objects}
	if err := c.tie(cgroup); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// tie has the programs run, or replaces those of the agent before, each at once.
func (c *Capture) tie(cgroup string) error {
	if err := pinned.Keep(c.dir, c.objects.Maps); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	var err error
	if c.links, err = pinned.Attach(c.dir, cgroup, attachments, c.objects.Programs); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

// IsAttached says whether an [Attach] has left programs that run.
func IsAttached(dir string) bool { return pinned.IsAttached(dir, attachments) }

// Detach removes what [Attach] and [Capture.Add] made. What workloads dial afterwards is not captured: none may be left. A directory
// where nothing is attached is no error.
func Detach(dir string) error { return pinned.Remove(dir) }

// Close leaves everything attached.
func (c *Capture) Close() {
	c.objects.Close()
	for _, l := range c.links {
		_ = l.Close()
	}
}

// The maps' keys and values, as in bpf/capture.h.
type (
	workload struct {
		Address, DNS [16]byte
		Proxy        uint64
	}
	client struct {
		Netns        uint64
		Address      [16]byte
		Port, Unused uint32
	}
	destination struct {
		Address      [16]byte
		Port, Unused uint32
		Cookie       uint64
	}
	block struct {
		Netns            uint64
		Number, Declared uint32
	}
	ports [blockSize]uint32
	usage struct {
		Pending, Blocks int64
	}
)

// blockSize is how many neighbouring ports are noted together.
const blockSize = 64

// Add captures a workload's traffic from now on, or again as it is said. The order is such that nothing passes uncaptured: what a
// program of the workload dials is refused until its proxy listens.
func (c *Capture) Add(w Workload) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	cookie, err := network.Cookie(w.Netns)
	if err != nil {
		return err
	}
	var group unix.Stat_t
	if err := unix.Stat(w.ProxyGroup, &group); err != nil {
		return fmt.Errorf("look at the proxy's control group %s: %w", w.ProxyGroup, err)
	}
	maps := c.objects.Maps
	if err := pinned.Put(maps, "usages", cookie, usage{}, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("capture %s: %w", w.Netns, err)
	}
	declared := map[block]ports{}
	for _, p := range w.Ports {
		key := block{Netns: cookie, Number: uint32(p) / blockSize, Declared: 1}
		value := declared[key]
		value[p%blockSize] = 1
		declared[key] = value
	}
	for key, value := range declared {
		if err := pinned.Put(maps, "ports", key, value, ebpf.UpdateAny); err != nil {
			return fmt.Errorf("capture the declared ports of %s: %w", w.Netns, err)
		}
	}
	// Before the workload is known, as what its namespace was left by another one does not count.
	if err := c.leave(cookie, w); err != nil {
		return err
	}
	// The number of a control group is the inode of its directory.
	if err := pinned.Put(maps, "workloads", cookie, workload{Address: w.Address.As16(), DNS: w.DNS.As16(), Proxy: group.Ino}, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("capture %s: %w", w.Netns, err)
	}
	return c.steer(w, cookie)
}

// steer gives what others dial to the proxy.
func (c *Capture) steer(w Workload, cookie uint64) error {
	program, err := c.steering(cookie)
	if err != nil {
		return fmt.Errorf("capture %s: %w", w.Netns, err)
	}
	defer program.Close()
	pin := filepath.Join(c.dir, pinOf(cookie))
	l, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		defer l.Close()
		if err := l.Update(program); err != nil {
			return fmt.Errorf("replace the capture program of %s: %w", w.Netns, err)
		}
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("open the capture link of %s: %w", w.Netns, err)
	}
	ns, err := os.Open(w.Netns)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", w.Netns, err)
	}
	defer ns.Close()
	attached, err := link.AttachNetNs(int(ns.Fd()), program)
	if err != nil {
		return fmt.Errorf("attach capture to network namespace %s: %w", w.Netns, err)
	}
	defer attached.Close()
	if err := attached.Pin(pin); err != nil {
		return fmt.Errorf("pin the capture link of %s: %w", w.Netns, err)
	}
	return nil
}

func pinOf(cookie uint64) string { return steeredPrefix + strconv.FormatUint(cookie, 10) }

// steering loads the program of one network namespace. It has the cookie among its constants, as the kernel does not tell it.
func (c *Capture) steering(cookie uint64) (*ebpf.Program, error) {
	spec, err := specification(roomy)
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["steered_netns"].Set(cookie); err != nil {
		return nil, fmt.Errorf("set the constant of %s: %w", steered, err)
	}
	shared := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if name != ".rodata" {
			shared[name] = c.objects.Maps[name]
		}
	}
	for name := range spec.Programs {
		if name != steered {
			delete(spec.Programs, name)
		}
	}
	objects, err := load(spec, shared)
	if err != nil {
		return nil, err
	}
	defer objects.Close()
	return objects.DetachProgram(steered), nil
}

// Remove ends what [Capture.Add] began for a network namespace, given by its file, in which nothing runs any longer. One that is not
// captured is no error.
func (c *Capture) Remove(netns string) error {
	cookie, err := network.Cookie(netns)
	if errors.Is(err, os.ErrNotExist) {
		// The next sweep finds what is left of it.
		return nil
	}
	if err != nil {
		return err
	}
	c.changing.Lock()
	defer c.changing.Unlock()
	var own usage
	var failed error
	if err := c.objects.Maps["usages"].Lookup(cookie, &own); err == nil && own.Pending > 0 {
		// Sockets have removed theirs as they were closed, but for those that are just being closed.
		failed = c.forgetPending(func(netns uint64) bool { return netns == cookie })
	}
	return errors.Join(failed, c.forget(cookie))
}

// Sweep removes what is left of network namespaces other than these, given by their files: of workloads that went while no agent
// was there.
func (c *Capture) Sweep(netns []string) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	alive := map[uint64]bool{}
	for _, path := range netns {
		cookie, err := network.Cookie(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // It goes just now.
		}
		if err != nil {
			return err
		}
		alive[cookie] = true
	}
	// Add writes a workload's usage first, and forget removes it last.
	var cookie uint64
	var own usage
	var gone []uint64
	entries := c.objects.Maps["usages"].Iterate()
	for entries.Next(&cookie, &own) {
		if !alive[cookie] {
			gone = append(gone, cookie)
		}
	}
	// Those of dials of an agent that was killed are in nobody's usage.
	errs := []error{c.forgetPending(func(netns uint64) bool { return !alive[netns] })}
	// What an interrupted walk leaves, the next sweep finds.
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		errs = append(errs, fmt.Errorf("look for workloads of capture that are gone: %w", err))
	}
	for _, cookie := range gone {
		errs = append(errs, c.forget(cookie))
	}
	return errors.Join(errs...)
}

// forgetPending removes connections on their way to the proxies of some network namespaces: it looks through those of all.
func (c *Capture) forgetPending(gone func(netns uint64) bool) error {
	if err := pinned.RemoveKeys(c.objects.Maps["pending"], func(key client) bool { return gone(key.Netns) }); err != nil {
		return fmt.Errorf("forget connections on their way to proxies that are gone: %w", err)
	}
	return nil
}

// forget removes all else that is kept of a network namespace in which nothing runs any longer. Others are not walked over.
func (c *Capture) forget(cookie uint64) error {
	var errs []error
	if err := pinned.Drop(filepath.Join(c.dir, pinOf(cookie))); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	maps := c.objects.Maps
	var own usage
	err := maps["usages"].Lookup(cookie, &own)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return errors.Join(errs...)
	}
	errs = append(errs, err, removePorts(maps["ports"], cookie, own.Blocks > 0), remove(maps["rules"], cookie), remove(maps["workloads"], cookie))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("forget network namespace %d of capture: %w", cookie, err)
	}
	return c.giveBack(cookie, own.Blocks)
}

// removePorts removes the declared ports of a network namespace, and those on which programs have listened.
func removePorts(of *ebpf.Map, cookie uint64, listened bool) error {
	for number := range uint32(1<<16) / blockSize {
		err := remove(of, block{Netns: cookie, Number: number, Declared: 1})
		if err == nil && listened {
			err = remove(of, block{Netns: cookie, Number: number})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// giveBack returns what a network namespace had of the room for blocks.
func (c *Capture) giveBack(cookie uint64, blocks int64) error {
	const which = uint32(programBlockCountBLOCKS_RETURNED)
	counts := c.objects.Maps["blocks"]
	var returned int64
	err := counts.Lookup(which, &returned)
	if err == nil {
		err = c.objects.Maps["usages"].Delete(cookie)
	}
	if err == nil && blocks > 0 {
		err = counts.Put(which, returned+blocks)
	}
	if err != nil {
		return fmt.Errorf("give back what network namespace %d had of capture: %w", cookie, err)
	}
	return nil
}

// remove removes an entry, if it is there.
func remove(m *ebpf.Map, key any) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// Captured says what is missing of a workload's capture, by the file of its network namespace.
func (c *Capture) Captured(netns string) error {
	cookie, err := network.Cookie(netns)
	if err != nil {
		return err
	}
	var w workload
	if err := c.objects.Maps["workloads"].Lookup(cookie, &w); err != nil {
		return fmt.Errorf("%s is not among the captured workloads: %w", netns, err)
	}
	for _, name := range append([]string{pinOf(cookie)}, programs()...) {
		l, err := link.LoadPinnedLink(filepath.Join(c.dir, name), nil)
		if err != nil {
			return fmt.Errorf("the program %s is not attached: %w", name, err)
		}
		info, err := l.Info()
		_ = l.Close()
		if err != nil {
			return fmt.Errorf("look at the program %s: %w", name, err)
		}
		if ns := info.NetNs(); ns != nil && ns.NetnsInode == 0 {
			return fmt.Errorf("the network namespace of the program %s is gone", name)
		}
	}
	return nil
}

func programs() []string {
	var names []string
	for _, a := range attachments {
		names = append(names, a.Program)
	}
	return names
}
