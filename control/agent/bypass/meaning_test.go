package bypass

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// control calls f with the connection's descriptor.
func control(t testing.TB, c *net.TCPConn, f func(fd int) error) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := errors.Join(raw.Control(func(fd uintptr) { failed = f(int(fd)) }), failed); err != nil {
		t.Fatal(err)
	}
}

// What programs do with a socket means what it means with TCP, or what the reference says.
func TestWaysToSend(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	short := []byte("ab")
	for name, c := range map[string]struct {
		send func(t *testing.T, client *net.TCPConn)
		want []byte
	}{
		"sendfile": {func(t *testing.T, client *net.TCPConn) {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := client.ReadFrom(f); err != nil {
				t.Error(err)
			}
		}, content},
		"splice": {func(t *testing.T, client *net.TCPConn) {
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				from, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = from.Write(content)
				from.Close()
			}()
			source, err := net.Dial("tcp4", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer source.Close()
			if _, err := client.ReadFrom(source); err != nil {
				t.Error(err)
			}
		}, content},
		"more to come": {func(t *testing.T, client *net.TCPConn) {
			control(t, client, func(fd int) error {
				return errors.Join(unix.Sendto(fd, short[:1], unix.MSG_MORE, nil), unix.Sendto(fd, short[1:], 0, nil))
			})
		}, short},
		// Loses its mark: it is read with the others.
		"urgent": {func(t *testing.T, client *net.TCPConn) {
			control(t, client, func(fd int) error {
				return errors.Join(unix.Sendto(fd, short[:1], 0, nil), unix.Sendto(fd, short[1:], unix.MSG_OOB, nil))
			})
		}, short},
	} {
		for family, at := range families {
			t.Run(name+" "+family, func(t *testing.T) {
				m := newMachine(t)
				a, l := sidecars(t, at)
				client, server := m.connect(t, a, l, at.target, netip.AddrPort{})
				if err := server.SetReadDeadline(time.Now().Add(patience)); err != nil {
					t.Fatal(err)
				}
				got := make(chan []byte)
				go func() {
					all, _ := io.ReadAll(server)
					got <- all
				}()
				c.send(t, client)
				if err := client.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				if all := <-got; !bytes.Equal(all, c.want) {
					t.Errorf("%d bytes arrived for %d, or other ones", len(all), len(c.want))
				}
				if s := m.status(t); s.Messages == 0 {
					t.Errorf("nothing bypassed TCP: %+v", s)
				}
			})
		}
	}
}

func TestTheReceiverSeesHowMuchWaits(t *testing.T) {
	m := newMachine(t)
	at := families["ipv4"]
	a, l := sidecars(t, at)
	client, server := m.connect(t, a, l, at.target, netip.AddrPort{})
	if _, err := io.WriteString(client, "seven.."); err != nil {
		t.Fatal(err)
	}
	control(t, server, func(fd int) error {
		waits, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
		if waits != 7 {
			t.Errorf("%d bytes wait", waits)
		}
		return err
	})
	if s := m.status(t); s.Messages != 1 {
		t.Errorf("%+v", s)
	}
}

// Who asks TCP to find out whether the other end is still there learns it, although nothing else goes by TCP.
func TestKeepaliveFindsADeadPeer(t *testing.T) {
	m := newMachine(t)
	at := families["ipv4"]
	a, l := sidecars(t, at)
	client, server := m.connect(t, a, l, at.target, netip.AddrPort{})
	exchange(t, client, server, "alive")
	exchange(t, server, client, "alive")
	if s := m.status(t); s.Messages != 2 {
		t.Fatalf("%+v", s)
	}
	if err := client.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 1}); err != nil {
		t.Fatal(err)
	}
	a.do(t, func() error {
		eth, err := netlink.LinkByName("eth0")
		return errors.Join(err, netlink.LinkSetDown(eth))
	})
	if err := client.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, syscall.EHOSTUNREACH) && !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("the peer cannot be reached: %v", err)
	}
}

// What the machine refuses is said, and leaves nothing.
func TestWhatCannotBeLoaded(t *testing.T) {
	m := newMachine(t)
	m.detach(t)
	// No map has no places.
	_, err := attachWithRoom(m.dir, m.cgroup, room{})
	if err == nil || !strings.Contains(err.Error(), "the kernel does not take the bypass programs") {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(m.dir); err != nil || len(left) > 0 || IsAttached(m.dir) {
		t.Errorf("%v are left: %v", left, err)
	}
	m.attach(t)
}

func TestWithoutPrivileges(t *testing.T) {
	m := newMachine(t)
	m.detach(t)
	n := newNamespace(t) // For its thread, which ends.
	n.do(t, func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			return err
		}
		if _, err := attachWithRoom(m.dir, m.cgroup, room{sockets: 64, unreadBlocks: 8}); err == nil || !strings.Contains(err.Error(), "CAP_SYS_ADMIN") {
			t.Errorf("%v", err)
		}
		return nil
	})
	if IsAttached(m.dir) {
		t.Error("it is attached")
	}
	m.attach(t)
}
