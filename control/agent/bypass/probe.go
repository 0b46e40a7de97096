package bypass

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package bypass -target bpfel -no-global-types probe ../../../bpf/probe.bpf.c -- -O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu

// needs of the programs, by what a kernel's configuration calls them.
var needs = []struct {
	name string
	has  func() error
}{
	{"BTF (CONFIG_DEBUG_INFO_BTF)", func() error { _, err := btf.LoadKernelSpec(); return err }},
	{"SOCK_OPS programs (CONFIG_CGROUP_BPF)", func() error { return features.HaveProgramType(ebpf.SockOps) }},
	{"SK_MSG programs (CONFIG_NET_SOCK_MSG)", func() error { return features.HaveProgramType(ebpf.SkMsg) }},
	{"iterators (CONFIG_BPF_EVENTS)", func() error { return features.HaveProgramType(ebpf.Tracing) }},
	{"maps of sockets (CONFIG_NET_SOCK_MSG)", func() error { return features.HaveMapType(ebpf.SockHash) }},
	{"storage of sockets (CONFIG_BPF_SYSCALL)", func() error { return features.HaveMapType(ebpf.SkStorage) }},
}

// errNotTaken says why the kernel does not take programs: what it lacks, or else its own words.
func errNotTaken(err error) error {
	var lacks []string
	for _, n := range needs {
		if errors.Is(n.has(), ebpf.ErrNotSupported) {
			lacks = append(lacks, n.name)
		}
	}
	if len(lacks) > 0 {
		return fmt.Errorf("the kernel has no %s, which the bypass needs: %w", strings.Join(lacks, ", no "), err)
	}
	return fmt.Errorf("the kernel does not take the bypass programs; they need CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and Linux 6.13 or a later release of an older one: %w", err)
}

// errNotCharged is of kernels before "tcp_bpf: Charge receive socket buffer in bpf_tcp_ingress()" (6.13, and what took it from there): a reader
// that stops would have its peer fill the machine's memory.
var errNotCharged = errors.New("the kernel does not charge what is redirected to a socket to this socket, so that nothing bounds what is left unread; a Linux from 6.13 on does, and later releases of older ones")

// probe redirects a message between two sockets on loopback and looks whether the receiver is charged for it.
func probe() error {
	spec, err := loadProbe()
	if err != nil {
		return fmt.Errorf("read the bypass' probe: %w", err)
	}
	objects, err := ebpf.NewCollection(spec)
	if err != nil {
		return errNotTaken(err)
	}
	defer objects.Close()
	if err := link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: objects.Maps["ends"].FD(), Program: objects.Programs["redirect_to_receiver"], Attach: ebpf.AttachSkMsgVerdict,
	}); err != nil {
		return errNotTaken(err)
	}
	sender, receiver, err := loopbackPair()
	if err != nil {
		return fmt.Errorf("try what the kernel does with a message that bypasses TCP: %w", err)
	}
	defer sender.Close()
	defer receiver.Close()
	charged, err := redirected(objects.Maps["ends"], sender, receiver)
	switch {
	case err != nil:
		return fmt.Errorf("try what the kernel does with a message that bypasses TCP: %w", err)
	case charged == 0:
		return errNotCharged
	}
	return nil
}

// loopbackPair is a connection.
func loopbackPair() (sender, receiver *net.TCPConn, err error) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if sender, err = net.DialTCP("tcp4", nil, l.Addr().(*net.TCPAddr)); err != nil {
		return nil, nil, err
	}
	if receiver, err = l.AcceptTCP(); err != nil {
		sender.Close()
		return nil, nil, err
	}
	return sender, receiver, nil
}

// redirected sends a message from one to the other past TCP, and gives the bytes that the receiver is charged for it before it has read.
func redirected(ends *ebpf.Map, sender, receiver *net.TCPConn) (charged uint32, err error) {
	// Of sk_getsockopt's SO_MEMINFO: the first is SK_MEMINFO_RMEM_ALLOC.
	var memory [16]uint32
	for i, end := range []*net.TCPConn{receiver, sender} {
		raw, err := end.SyscallConn()
		if err != nil {
			return 0, err
		}
		var put error
		if err := errors.Join(raw.Control(func(fd uintptr) { put = ends.Put(uint64(i), uint64(fd)) }), put); err != nil {
			return 0, err
		}
	}
	if _, err := sender.Write([]byte("charged?")); err != nil {
		return 0, err
	}
	raw, err := receiver.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && info.Bytes_received > 0 {
			err = errors.New("it went by TCP")
		}
		if err != nil {
			failed = err
			return
		}
		size := uint32(unsafe.Sizeof(memory))
		if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&memory[0])), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
			failed = errno
		}
	})
	return memory[0], errors.Join(err, failed)
}
