// Package bypass has what a socket sends to a proxy on the same host go straight into the proxy's receive queue, past
// TCP/IP: eBPF programs (folder bpf/) on the sockets of one control group. Connections to other hosts, and whatever the
// programs do not vouch for, use TCP as before. docs/design/0032 says what is bypassed and what is not, and why.
//
// Programs and maps are pinned: they go on without the agent, and the next one takes them over.
package bypass

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"heddle.io/heddle/control/agent/pinned"
	"heddle.io/heddle/control/cluster"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package bypass -target bpfel -no-global-types -type count program ../../../bpf/bypass.bpf.c -- -O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu

// attachments are the programs on the cluster's control group: first what says that a socket is closed, then what finds them.
var attachments = []pinned.Attachment{{Program: "closed", Kind: ebpf.AttachCgroupInetSockRelease}, {Program: "established", Kind: ebpf.AttachCGroupSockOps}}

// Bypass is what is attached. Make one with [Attach].
type Bypass struct {
	objects *ebpf.Collection
	links   []link.Link
}

// Attach has the programs find the connections that are made from now on in the control group (a directory of cgroup version 2) and in
// those below it. [Bypass.Run] has them bypass TCP. What an earlier Attach left in dir is taken over, with its connections; dir becomes the mount point of a BPF
// file system.
//
// The error says what the machine lacks. Nothing is attached then that was not before.
func Attach(dir, cgroup string) (*Bypass, error) {
	memory, err := machineMemory()
	if err != nil {
		return nil, err
	}
	return attachWithRoom(dir, cgroup, roomFor(memory))
}

// attachWithRoom is [Attach] on a machine that has so much room.
func attachWithRoom(dir, cgroup string, r room) (*Bypass, error) {
	if !IsAttached(dir) {
		// What somebody has left who was killed while attaching.
		if err := Detach(dir); err != nil {
			return nil, err
		}
	}
	if err := pinned.Mount(dir); err != nil {
		return nil, err
	}
	b, err := loadAndAttach(dir, cgroup, r)
	if err != nil {
		if !IsAttached(dir) {
			// The first one: nothing of it stays.
			err = errors.Join(err, Detach(dir))
		}
		return nil, err
	}
	return b, nil
}

// errOtherVersion: pinned maps are not what these programs want.
func errOtherVersion(why error) error {
	return fmt.Errorf("the bypass programs of another version of Heddle are attached, and go on; `heddle down --keep-data` and `heddle up` replace them: %w", why)
}

// layoutMap has as many places as the number of the layout of maps and links (LAYOUT in bpf/bypass.h).
const layoutMap = "layout"

func loadAndAttach(dir, cgroup string, r room) (*Bypass, error) {
	if err := probe(); err != nil {
		return nil, err
	}
	spec, err := loadProgram()
	if err != nil {
		return nil, fmt.Errorf("read the bypass programs: %w", err)
	}
	kept, err := pinned.Maps(dir, spec)
	if err != nil {
		return nil, err
	}
	defer pinned.Close(kept)
	if kept[layoutMap] == nil && len(kept) > 0 {
		return nil, errOtherVersion(errors.New("they have no number of their layout"))
	}
	if sockets := kept["sockets"]; sockets != nil {
		r.sockets = sockets.MaxEntries() // The machine may have had another memory.
	}
	if err := r.set(spec); err != nil {
		return nil, err
	}
	for name, value := range map[string]uint32{"outbound_port": cluster.PortOutbound, "inbound_port": cluster.PortInbound, "health_port": cluster.PortHealth, "metrics_port": cluster.PortMetrics} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s of the bypass programs: %w", name, err)
		}
	}
	objects, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: kept})
	switch {
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return nil, errOtherVersion(err)
	case err != nil:
		return nil, errNotTaken(err)
	}
	b := &Bypass{objects: objects}
	if err := b.pinAndAttach(dir, cgroup); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// pinAndAttach has the programs run: first what sends, then what finds the connections.
func (b *Bypass) pinAndAttach(dir, cgroup string) error {
	if err := pinned.Keep(dir, b.objects.Maps); err != nil {
		return fmt.Errorf("the bypass: %w", err)
	}
	if err := link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: b.objects.Maps["sockets"].FD(), Program: b.objects.Programs["redirect_message"], Attach: ebpf.AttachSkMsgVerdict,
	}); err != nil {
		return fmt.Errorf("attach the bypass to its sockets: %w", err)
	}
	var err error
	if b.links, err = pinned.Attach(dir, cgroup, attachments, b.objects.Programs); err != nil {
		return fmt.Errorf("the bypass: %w", err)
	}
	return nil
}

// Enable has connections bypass TCP, or, with false, go back to it: each when its peer has read what it was sent.
func (b *Bypass) Enable(on bool) error {
	var value uint32
	if on {
		value = 1
	}
	if err := b.objects.Variables["enabled"].Set(value); err != nil {
		return fmt.Errorf("switch the bypass: %w", err)
	}
	return nil
}

// Close leaves everything attached.
func (b *Bypass) Close() {
	b.objects.Close()
	for _, l := range b.links {
		_ = l.Close()
	}
}

// Detach removes what Attach made. Data that is on its way between sockets is lost with them: no connection may be left, or
// [Bypass.Enable] must have sent them back to TCP. A directory where nothing is attached is no error.
func Detach(dir string) error { return pinned.Remove(dir) }

// IsAttached says whether an [Attach] has left programs that run.
func IsAttached(dir string) bool { return pinned.IsAttached(dir, attachments) }
