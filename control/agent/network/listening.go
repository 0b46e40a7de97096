package network

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Listening are the TCP ports of an address of this machine that programs in the calling process's network namespace
// listen on, at the address itself or at any (proc_pid_net(5)).
func Listening(address netip.Addr) (map[uint16]bool, error) {
	ports := map[uint16]bool{}
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) && strings.HasSuffix(path, "6") {
			// A kernel without IPv6.
			continue
		}
		if err == nil {
			err = errors.Join(listening(f, address.Unmap(), ports), f.Close())
		}
		if err != nil {
			return nil, fmt.Errorf("look for listening programs in %s: %w", path, err)
		}
	}
	return ports, nil
}

// stateListen is TCP_LISTEN of the kernel's tcp_states.h.
const stateListen = "0A"

func listening(table io.Reader, address netip.Addr, ports map[uint16]bool) error {
	lines := bufio.NewScanner(table)
	lines.Scan() // the headings
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] != stateListen {
			continue
		}
		local, err := kernelAddress(fields[1])
		if err != nil {
			return err
		}
		// Whoever listens at :: gets connections by IPv4 too, unless it asked for IPv6 alone, which the table does not tell.
		if at := local.Addr().Unmap(); at == address || at == netip.IPv6Unspecified() || at == netip.IPv4Unspecified() && address.Is4() {
			ports[local.Port()] = true
		}
	}
	return lines.Err()
}

// kernelAddress reads ADDRESS:PORT in hexadecimal digits, the address as words in the machine's order of bytes.
func kernelAddress(text string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	if err != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, fmt.Errorf("%q is no address", text)
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q has no port", text)
	}
	address, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(address, uint16(number)), nil
}
