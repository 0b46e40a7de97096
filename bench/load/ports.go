package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Source ports of connections that are arranged. They are below those that the kernel gives away by default.
const firstPort, lastPort = 10000, 32767

// PortsBySocket finds source ports of 127.0.0.1, count for each of so many sockets that listen on address together
// (SO_REUSEPORT): the kernel gives their connections to that socket. That holds for whoever listens there next with as many,
// in the order in which they begin to listen. The address must be free, on IPv4 loopback.
func PortsBySocket(address string, sockets, count int) ([][]int, error) {
	type accepted struct{ socket, port int }
	found, failed := make(chan accepted), make(chan error, sockets)
	for socket := range sockets {
		listener, err := listenTogether(address)
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					failed <- err
					return
				}
				port := conn.RemoteAddr().(*net.TCPAddr).Port
				conn.Close()
				found <- accepted{socket, port}
			}
		}()
	}
	ports, missing := make([][]int, sockets), sockets
	for port := firstPort; port <= lastPort; port++ {
		conn, err := dialFrom(port, address, time.Second)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		} else if err != nil {
			return nil, err
		}
		select {
		case at := <-found:
			conn.Close()
			if len(ports[at.socket]) == count {
				continue
			}
			if ports[at.socket] = append(ports[at.socket], at.port); len(ports[at.socket]) < count {
				continue
			}
			if missing--; missing == 0 {
				return ports, nil
			}
		case err := <-failed:
			return nil, err
		}
	}
	return nil, fmt.Errorf("ports %d to %d do not lead to each of %d sockets on %s %d times: ask for fewer", firstPort, lastPort, sockets, address, count)
}

// listenTogether listens on an address on which others may listen as well.
func listenTogether(address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return option(raw, unix.SO_REUSEPORT)
	}}
	return config.Listen(context.Background(), "tcp4", address)
}

// dialFrom connects from a port of 127.0.0.1. Closing resets, so that the port can be used again at once.
func dialFrom(port int, address string, timeout time.Duration) (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: timeout, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port},
		Control: func(_, _ string, raw syscall.RawConn) error { return option(raw, unix.SO_REUSEADDR) }}
	conn, err := dialer.Dial("tcp4", address)
	if err != nil {
		return nil, err
	}
	tcp := conn.(*net.TCPConn)
	return tcp, tcp.SetLinger(0)
}

func option(raw syscall.RawConn, name int) error {
	var failed error
	err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, name, 1) })
	return errors.Join(err, failed)
}
