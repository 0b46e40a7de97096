package cli

import (
	"net"
	"os"
)

// notifyReady tells systemd that a unit of Type=notify is ready (sd_notify(3)). Without systemd it does nothing.
func notifyReady() {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if path[0] == '@' {
		path = "\x00" + path[1:]
	}
	connection, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer connection.Close()
	// systemd times the unit out when it does not hear; there is nobody else to tell.
	_, _ = connection.Write([]byte("READY=1"))
}
