package capture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/cluster"
)

// dialTime is how long [Capture.Dial] takes at most where the context does not say.
const dialTime = 10 * time.Second

// askedPort is where resolvers ask (RFC 1035, section 4.2), ASKED_PORT of the programs.
const askedPort = 53

// Dial connects from inside a captured network namespace, given by its name, as an application of the workload would: by its proxy,
// which hears of the target, or past it where it would be. The caller is none of the cluster's programs, so that nothing redirects it otherwise.
func (c *Capture) Dial(ctx context.Context, name string, target netip.AddrPort) (net.Conn, error) {
	cookie, err := network.Cookie(network.Path(name))
	if err != nil {
		return nil, err
	}
	var w workload
	if err := c.objects.Maps["workloads"].Lookup(cookie, &w); err != nil {
		return nil, fmt.Errorf("%s is not among the captured workloads: %w", name, err)
	}
	own := netip.AddrFrom16(w.Address).Unmap()
	switch host := target.Addr(); {
	case host.IsLoopback() || host == own:
		return network.Dial(ctx, name, "tcp", target.String())
	case host.As16() == w.DNS && target.Port() == askedPort:
		return network.Dial(ctx, name, "tcp", netip.AddrPortFrom(host, cluster.PortDNS).String())
	}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if own.Is6() {
		loopback = netip.IPv6Loopback()
	}
	var connection net.Conn
	err = network.In(name, func() (err error) {
		connection, err = c.dial(ctx, cookie, own, netip.AddrPortFrom(loopback, cluster.PortOutbound), target)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dial %s by the proxy of %s: %w", target, name, err)
	}
	return connection, nil
}

// dial has the proxy hear of the target before it is connected to: by the client's port, which is taken first.
func (c *Capture) dial(ctx context.Context, cookie uint64, own netip.Addr, proxy, target netip.AddrPort) (_ net.Conn, err error) {
	domain := unix.AF_INET
	if own.Is6() {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), "captured")
	defer func() { err = errors.Join(err, file.Close()) }()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(dialTime)
	}
	// connect(2) ends by this too; none is not "at once" but "never".
	limit := unix.NsecToTimeval(max(time.Until(deadline), time.Millisecond).Nanoseconds())
	if err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit), unix.Bind(fd, sockaddr(netip.AddrPortFrom(own, 0)))); err != nil {
		return nil, fmt.Errorf("take a port: %w", err)
	}
	local, err := unix.Getsockname(fd)
	if err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	key := client{Netns: cookie, Address: own.As16(), Port: portOf(local)}
	pending := c.objects.Maps["pending"]
	if err := pending.Put(key, destination{Address: target.Addr().As16(), Port: uint32(target.Port())}); err != nil {
		return nil, fmt.Errorf("tell the proxy of the target: %w", err)
	}
	if err := unix.Connect(fd, sockaddr(proxy)); err != nil {
		_ = pending.Delete(key)
		return nil, os.NewSyscallError("connect", err)
	}
	return net.FileConn(file)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func portOf(a unix.Sockaddr) uint32 {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return uint32(a.Port)
	case *unix.SockaddrInet6:
		return uint32(a.Port)
	}
	return 0
}
