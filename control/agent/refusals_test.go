package agent

import (
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/identity"
	"heddle.io/heddle/control/ca"
)

// connectAs connects to a socket as a user and returns once the other side has closed.
func connectAs(path string, user int) error {
	done := make(chan error, 1)
	go func() {
		// The thread ends with the goroutine, and nobody else becomes that user.
		runtime.LockOSThread()
		done <- func() error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(user), uintptr(user), uintptr(user)); errno != 0 {
				return errno
			}
			if err := errors.Join(unix.Connect(fd, &unix.SockaddrUnix{Name: path}), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})); err != nil {
				return err
			}
			for {
				if n, err := unix.Read(fd, make([]byte, 1<<10)); n <= 0 {
					return err
				}
			}
		}()
	}()
	return <-done
}

// What is refused at the sockets of proxies is counted where the agent's other figures are.
func TestMetricsTellWhatSocketsRefused(t *testing.T) {
	a := newAgent(t)
	dir, err := os.MkdirTemp("/run", "heddle-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "agent.sock")
	const user = 1879048192 + 99
	s, err := identity.Listen(identity.Config{Path: path, User: user, Netns: "/proc/self/ns/net", Controller: a.config.Cluster.XDSSocket(), Refusals: &a.refusals, Log: a.log,
		Node: &corev3.Node{Id: "p"}, Credential: identity.NewCredential(ca.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}, ca.ECDSAP256, a.client, a.log)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// What keeps others out besides.
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(path, 0o666)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := connectAs(path, user+1); err != nil {
			t.Errorf("another user: %v", err)
		}
	}
	refused := 0
	for range 18 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		// A server of HTTP/2 speaks first.
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
			refused++
		}
	}
	if refused != 2 {
		t.Errorf("%d connections were refused", refused)
	}
	answer := httptest.NewRecorder()
	a.metrics().ServeHTTP(answer, httptest.NewRequest("GET", "/v1/metrics", nil))
	for _, want := range []string{"peer\"} 3", "connections\"} 2", "streams\"} 0", "configuration_streams\"} 0", "certificates\"} 0"} {
		if want = "\nheddle_agent_socket_refused_total{reason=\"" + want + "\n"; !strings.Contains(answer.Body.String(), want) {
			t.Errorf("%q is not in\n%s", want, answer.Body)
		}
	}
	if !strings.Contains(answer.Body.String(), "\nheddle_bypass_attached ") {
		t.Error("the bypass's are not there any more")
	}
}
