package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// patience in seconds is how long a call may take.
const patience = 10

// socket is a TCP socket, made by whoever is to own it.
type socket struct{ fd int }

func open(t *testing.T, by *thread, domain, protocol int) socket {
	t.Helper()
	var s socket
	by.do(t, func() error {
		var err error
		s.fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		return s.bound()
	})
	t.Cleanup(func() { unix.Close(s.fd) })
	return s
}

func (s socket) bound() error {
	limit := unix.Timeval{Sec: patience}
	return errors.Join(unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit), unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
}

// at is an address in the kernel's form; IPv4 is mapped for a socket of IPv6.
func at(domain int, to netip.AddrPort) unix.Sockaddr {
	if domain == unix.AF_INET {
		return &unix.SockaddrInet4{Addr: to.Addr().Unmap().As4(), Port: int(to.Port())}
	}
	return &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
}

func addressOf(s unix.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr).Unmap(), uint16(s.Port))
	}
	return netip.AddrPort{}
}

func (s socket) peer(t *testing.T) netip.AddrPort {
	t.Helper()
	a, err := unix.Getpeername(s.fd)
	if err != nil {
		t.Fatal(err)
	}
	return addressOf(a)
}

func (s socket) local(t *testing.T) netip.AddrPort {
	t.Helper()
	a, err := unix.Getsockname(s.fd)
	if err != nil {
		t.Fatal(err)
	}
	return addressOf(a)
}

// original asks for SO_ORIGINAL_DST as a proxy does: by the family of the address that it has itself.
func (s socket) original(t *testing.T) (netip.AddrPort, error) {
	t.Helper()
	level, size := unix.SOL_IP, uint32(unix.SizeofSockaddrInet4)
	if s.local(t).Addr().Is6() {
		level, size = unix.SOL_IPV6, unix.SizeofSockaddrInet6
	}
	var raw [128]byte
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(level), unix.SO_ORIGINAL_DST, uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return netip.AddrPort{}, errno
	}
	port := binary.BigEndian.Uint16(raw[2:])
	if level == unix.SOL_IP {
		if binary.NativeEndian.Uint16(raw[:]) != unix.AF_INET || size != unix.SizeofSockaddrInet4 {
			t.Errorf("%d bytes %x", size, raw)
		}
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port), nil
	}
	if binary.NativeEndian.Uint16(raw[:]) != unix.AF_INET6 || size != unix.SizeofSockaddrInet6 {
		t.Errorf("%d bytes %x", size, raw)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw[8:24])), port), nil
}

// listen takes connections at an address.
func listen(t *testing.T, by *thread, where netip.AddrPort, backlog int) socket {
	t.Helper()
	domain := unix.AF_INET
	if where.Addr().Is6() {
		domain = unix.AF_INET6
	}
	s := open(t, by, domain, 0)
	by.do(t, func() error {
		return errors.Join(unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
			unix.Bind(s.fd, at(domain, where)), unix.Listen(s.fd, backlog))
	})
	return s
}

func (s socket) close(t *testing.T) {
	t.Helper()
	if err := unix.Shutdown(s.fd, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
}

func (s socket) accept(t *testing.T) socket {
	t.Helper()
	fd, _, err := unix.Accept4(s.fd, unix.SOCK_CLOEXEC)
	if err != nil {
		t.Fatalf("nobody came: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	a := socket{fd}
	if err := a.bound(); err != nil {
		t.Fatal(err)
	}
	return a
}

// empty says that nobody has come.
func (s socket) empty(t *testing.T) {
	t.Helper()
	if err := unix.SetNonblock(s.fd, true); err != nil {
		t.Fatal(err)
	}
	fd, from, err := unix.Accept4(s.fd, unix.SOCK_CLOEXEC)
	if err == nil {
		unix.Close(fd)
		t.Errorf("%v came", addressOf(from))
	} else if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(s.fd, false); err != nil {
		t.Fatal(err)
	}
}

// exchange has bytes go both ways.
func exchange(t *testing.T, a, b socket) {
	t.Helper()
	for _, way := range [][2]socket{{a, b}, {b, a}} {
		const text = "over and out"
		if n, err := unix.Write(way[0].fd, []byte(text)); err != nil || n != len(text) {
			t.Fatal(n, err)
		}
		got := make([]byte, len(text))
		if _, err := io.ReadFull(way[1], got); err != nil || string(got) != text {
			t.Fatalf("%q arrived: %v", got, err)
		}
	}
}

// Read implements [io.Reader].
func (s socket) Read(p []byte) (int, error) { return unix.Read(s.fd, p) }

// dial connects a new socket.
func dial(t *testing.T, by *thread, domain int, to netip.AddrPort) (socket, error) {
	t.Helper()
	s := open(t, by, domain, 0)
	return s, by.try(func() error { return unix.Connect(s.fd, at(domain, to)) })
}

func mustDial(t *testing.T, by *thread, domain int, to netip.AddrPort) socket {
	t.Helper()
	s, err := dial(t, by, domain, to)
	if err != nil {
		t.Fatalf("%v: %v", to, err)
	}
	return s
}
