package redistest

import (
	"io"
	"net"
)

// forward joins each connection of the listener to the socket until the
// listener is closed.
func forward(listener net.Listener, socket string) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", socket)
		if err != nil {
			_ = client.Close()
			continue
		}
		go splice(client, server)
		go splice(server, client)
	}
}

func splice(from, to net.Conn) {
	_, _ = io.Copy(to, from) // either end may hang up at any time
	_ = to.Close()
	_ = from.Close()
}
