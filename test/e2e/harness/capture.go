//go:build e2e

package harness

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Capture records the TCP payloads that cross an interface.
type Capture struct {
	cmd  *exec.Cmd
	file string
}

// StartCapture begins to record what the filter lets through and returns once the capture is running.
func StartCapture(t *testing.T, iface, filter string) *Capture {
	t.Helper()
	return startCapture(t, nil, iface, filter)
}

// StartCaptureIn is StartCapture in a named network namespace.
func StartCaptureIn(t *testing.T, netns, iface, filter string) *Capture {
	t.Helper()
	return startCapture(t, []string{"ip", "netns", "exec", netns}, iface, filter)
}

func startCapture(t *testing.T, where []string, iface, filter string) *Capture {
	t.Helper()
	c := &Capture{file: filepath.Join(t.TempDir(), "capture.pcap")}
	argv := slices.Concat(where, []string{"tcpdump", "-i", iface, "-U", "--immediate-mode", "-s", "0", "-Z", "root", "-w", c.file, filter})
	c.cmd = exec.Command(argv[0], argv[1:]...)
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatalf("tcpdump: %v", err)
	}
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "listening on") {
			return c
		}
	}
	t.Fatalf("tcpdump on %s ended before it listened: %v", iface, c.cmd.Wait())
	return nil
}

// Stop ends the capture and returns the packets as they crossed the interface.
func (c *Capture) Stop(t *testing.T) []byte {
	t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Fatalf("tcpdump: %v", err)
	}
	packets, err := os.ReadFile(c.file)
	if err != nil {
		t.Fatal(err)
	}
	const header = 24
	if len(packets) <= header {
		t.Fatal("the capture holds no packet: it proves nothing")
	}
	return packets
}

// Saw says whether the marker crossed the interface in the clear.
func Saw(packets []byte, marker string) bool { return bytes.Contains(packets, []byte(marker)) }
