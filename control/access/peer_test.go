package access

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// connected is one end of a unix socket whose other end is this process.
func connected(t *testing.T) *net.UnixConn {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestPeerIsWhoTheKernelSays(t *testing.T) {
	if got, err := PeerOf(connected(t)); err != nil || got != (Peer{UID: os.Geteuid(), PID: os.Getpid()}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Of whom the kernel says nothing, nobody is made.
func TestPeerThatTheKernelDoesNotTell(t *testing.T) {
	conn := connected(t)
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var replaceErr error
	err = raw.Control(func(fd uintptr) { replaceErr = unix.Dup3(int(null.Fd()), int(fd), unix.O_CLOEXEC) })
	if err = errors.Join(err, replaceErr); err != nil {
		t.Fatal(err)
	}
	if got, err := PeerOf(conn); !errors.Is(err, unix.ENOTSOCK) {
		t.Errorf("%+v, %v", got, err)
	}
	conn.Close()
	if got, err := PeerOf(conn); err == nil {
		t.Errorf("of a connection that is closed: %+v", got)
	}
}
