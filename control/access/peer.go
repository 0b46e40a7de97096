package access

import (
	"errors"
	"fmt"
	"net"
	"os/user"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end of a unix socket, as the kernel knows it since it connected (unix(7),
// SO_PEERCRED). It cannot be claimed.
type Peer struct {
	UID, PID int
}

// PeerOf asks the kernel.
func PeerOf(conn net.Conn) (Peer, error) {
	if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = wrapped.NetConn()
	}
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return Peer{}, errors.New("not a unix socket")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("look at peer: %w", err)
	}
	var peer *unix.Ucred
	var peerErr error
	err = raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, peerErr); err != nil {
		return Peer{}, fmt.Errorf("look at peer: %w", err)
	}
	return Peer{UID: int(peer.Uid), PID: int(peer.Pid)}, nil
}

// From is where a request of the peer came from.
func (p Peer) From() string { return fmt.Sprintf("unix pid %d", p.PID) }

// caller is the user behind a peer. Its groups are those of the machine's database, not of the process: they are the same
// for all its processes, and a process that took another's number has none of it.
func (p Peer) caller() *Caller {
	c := &Caller{Kind: KindUser, Name: strconv.Itoa(p.UID), UID: p.UID, From: p.From()}
	if p.UID == 0 {
		// No role depends on root's groups, and the agent calls often.
		c.Name = "root"
		return c
	}
	account, err := user.LookupId(c.Name)
	if err != nil {
		return c
	}
	c.Name = account.Username
	ids, err := account.GroupIds()
	if err != nil {
		return c
	}
	for _, id := range ids {
		c.Groups = append(c.Groups, id)
		if g, err := user.LookupGroupId(id); err == nil {
			c.Groups = append(c.Groups, g.Name)
		}
	}
	slices.Sort(c.Groups)
	return c
}
