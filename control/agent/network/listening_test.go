package network

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestWhoListens(t *testing.T) {
	listen := func(address string) uint16 {
		t.Helper()
		l, err := net.Listen("tcp4", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return netip.MustParseAddrPort(l.Addr().String()).Port()
	}
	own, other, wildcard := listen("127.0.0.1:0"), listen("127.0.0.2:0"), listen("0.0.0.0:0")
	got, err := Listening(netip.MustParseAddr("127.0.0.1"))
	if err != nil || !got[own] || got[other] || !got[wildcard] {
		t.Errorf("%v of %d %d %d: %v", got, own, other, wildcard, err)
	}
	if l, err := net.Listen("tcp6", "[::]:0"); err == nil {
		defer l.Close()
		port := netip.MustParseAddrPort(l.Addr().String()).Port()
		for _, address := range []string{"127.0.0.1", "::1"} {
			if got, err := Listening(netip.MustParseAddr(address)); err != nil || !got[port] {
				t.Errorf("%s: %v of %d: %v", address, got, port, err)
			}
		}
	}
	for _, broken := range []string{"xx:0016", "00000000", "000000:0016", "00000000:zz"} {
		if err := listening(strings.NewReader("sl\n 0: "+broken+" 00000000:0000 0A\n"), netip.MustParseAddr("127.0.0.1"), map[uint16]bool{}); err == nil {
			t.Errorf("%s is taken for an address", broken)
		}
	}
}
