package network

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// DialAs connects from inside the namespace with a socket that belongs to a user and a group, so
// that the packet filter takes it for one of theirs (nft's skuid and skgid: the file system ids at the socket's birth,
// credentials(7)). The address is an IP and a port.
func DialAs(ctx context.Context, name string, user, group int, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	var connection net.Conn
	// The thread of In is locked: its ids are nobody else's. A thread whose ids could not be restored must not go on.
	err := In(name, func() (err error) {
		uid, err := unix.SetfsuidRetUid(user)
		if err != nil {
			return fmt.Errorf("become user %d: %w", user, err)
		}
		gid, err := unix.SetfsgidRetGid(group)
		if err == nil {
			var dialer net.Dialer
			connection, err = dialer.DialContext(ctx, network, address)
			_ = unix.Setfsgid(gid)
		}
		if unix.Setfsuid(uid) != nil || fsuid() != uid {
			panic("network: a thread cannot become itself again")
		}
		return err
	})
	return connection, err
}

// fsuid is the calling thread's file system user; setfsuid(2) with an impossible one changes nothing and tells.
func fsuid() int {
	uid, err := unix.SetfsuidRetUid(-1)
	if err != nil {
		return -1
	}
	return uid
}
