//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/agent/bypass"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/test/e2e/harness"
)

// neighbours are a page, which answers without ever waiting in a call that reads, and who reads it.
const neighbours = `apiVersion: v1
kind: Namespace
metadata: { name: shop }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: page, namespace: shop, labels: { app: page } }
spec: { command: [/usr/bin/python3, -c, "import asyncio, os\nasync def serve(r, w):\n    try:\n        while True:\n            head = await r.readuntil(b'\\r\\n\\r\\n')\n            path = '/usr/share/common-licenses' + head.split(b' ')[1].decode()\n            body = open(path, 'rb').read() if os.path.isfile(path) else b''\n            w.write(b'HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n' % len(body) + body)\n            await w.drain()\n    except (asyncio.IncompleteReadError, ConnectionError):\n        w.close()\nasync def main():\n    await (await asyncio.start_server(serve, '0.0.0.0', 8000)).serve_forever()\nasyncio.run(main())\n"], ports: [{ name: http, port: 8000 }] }
---
apiVersion: v1
kind: Service
metadata: { name: page, namespace: shop }
spec: { selector: { app: page }, ports: [{ name: http, port: 80, targetPort: 8000 }] }
---
apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: reader, namespace: shop }
spec: { command: [/bin/sleep, "100000"] }
`

// echo gives back what it gets, and waits for it in calls that read.
const echo = `apiVersion: heddle.io/v1alpha1
kind: Workload
metadata: { name: echo, namespace: shop, labels: { app: echo } }
spec: { command: [/usr/bin/python3, -c, "import socket, threading\ndef echo(c):\n    while b := c.recv(65536):\n        c.sendall(b)\n    c.close()\ns = socket.create_server(('0.0.0.0', 9000))\nwhile True:\n    threading.Thread(target=echo, args=(s.accept()[0],)).start()\n"], ports: [{ name: tcp, port: 9000 }] }
---
apiVersion: v1
kind: Service
metadata: { name: echo, namespace: shop }
spec: { selector: { app: echo }, ports: [{ name: tcp, port: 9000 }] }
`

// Sends 64 MiB of raw TCP in pieces of all sizes, and for two seconds at the least, and has them back meanwhile.
const bulk = `import hashlib, os, random, socket, sys, threading, time
s = socket.create_connection((sys.argv[1], 9000))
s.settimeout(60)
sent, size, end = hashlib.sha256(), 0, time.monotonic() + 2
def send():
    global size
    while size < 64 << 20 or time.monotonic() < end:
        b = os.urandom(random.randint(1, 200000))
        sent.update(b)
        s.sendall(b)
        size += len(b)
    s.shutdown(socket.SHUT_WR)
t = threading.Thread(target=send)
t.start()
got, n = hashlib.sha256(), 0
while b := s.recv(65536):
    got.update(b)
    n += len(b)
t.join()
print(size if n == size and got.digest() == sent.digest() else "other bytes")
`

// tcpBytes is what a sidecar's metrics have of the raw TCP of a workload's callers or of those that it calls: bytes received and sent.
func tcpBytes(t *testing.T, r harness.Replica) (received, sent int64) {
	t.Helper()
	for name, total := range map[string]*int64{"istio_tcp_received_bytes_total{": &received, "istio_tcp_sent_bytes_total{": &sent} {
		for line := range strings.Lines(harness.OnlyLines(r.ProxyStats(t), name)) {
			fields := strings.Fields(line)
			n, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			*total += int64(n)
		}
	}
	return received, sent
}

// strict has workloads of the namespace take mutual TLS alone.
const strict = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: { name: strict, namespace: shop }
spec: { mtls: { mode: STRICT } }
`

// Requests of HTTP/2 for a second, so that the connection bypasses TCP, and then some in a thousand pieces each, which come while the sidecar does not run: the first of them bypass TCP, the rest goes
// by TCP, and both are there when the sidecar goes on. Then nothing more is sent until the answer has come.
const pieces = `import array, fcntl, os, signal, socket, sys, termios, time
address, proxy = sys.argv[1], int(sys.argv[2])
def number(first, bits, n):
    most = (1 << bits) - 1
    if n < most:
        return bytes([first | n])
    out, n = [first | most], n - most
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + [n])
def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
def text(value):
    return number(0, 7, len(value)) + value
def request(stream, path=b"/BSD"):
    fields = b"\x82\x86" + b"\x04" + text(path) + b"\x01" + text(b"page.shop.svc.cluster.local") + b"\x00" + text(b"x") + text(b"x" * 900)
    return frame(1, 5, stream, fields)
def answer(s, stream):
    got = b""
    while True:
        while len(got) < 9 or len(got) < 9 + int.from_bytes(got[:3], "big"):
            more = s.recv(65536)
            if not more:
                raise SystemExit("closed")
            got += more
        length, kind, flags, at = int.from_bytes(got[:3], "big"), got[3], got[4], int.from_bytes(got[5:9], "big")
        got = got[9+length:]
        if at == stream and kind in (0, 1) and flags & 1:
            return
s = socket.create_connection((address, 80), 5)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(4, 1, 0, b"") + request(1))
answer(s, 1)
def arrived(s):
    unacknowledged = array.array("i", [1])
    while unacknowledged[0]:
        fcntl.ioctl(s, termios.TIOCOUTQ, unacknowledged)
stream, end = 3, time.monotonic() + 1
while time.monotonic() < end:
    s.sendall(request(stream, b"/")) # Whose answer is empty: nobody gives the window back.
    answer(s, stream)
    stream += 2
for stream in range(stream, stream + 40, 2):
    os.kill(proxy, signal.SIGSTOP)
    try:
        pieces = request(stream)
        for i in range(len(pieces)):
            s.send(pieces[i:i+1])
        arrived(s)
    finally:
        os.kill(proxy, signal.SIGCONT)
    answer(s, stream)
print("answered")`

func testCluster(t *testing.T) cluster.Cluster {
	t.Helper()
	c, err := cluster.New(clusterName)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// proxyOf gives the process of a replica's sidecar.
func proxyOf(t *testing.T, namespace, workload string) int {
	t.Helper()
	netns := testCluster(t).Netns(namespace, workload+"-0")
	pids, err := exec.Command("ip", "netns", "pids", netns).Output()
	if err != nil {
		t.Fatal(err)
	}
	for pid := range strings.FieldsSeq(string(pids)) {
		if name, err := os.ReadFile(filepath.Join("/proc", pid, "comm")); err == nil && string(name) == "heddle-proxy\n" {
			n, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no sidecar in %s: %q", netns, pids)
	return 0
}

// What goes from workload to workload of one machine bypasses TCP and arrives as it was sent, also over the death of the
// agent, and nothing of it stays when the cluster is gone.
func TestTCPBypass(t *testing.T) {
	withoutCluster(t)
	pins := filepath.Join("/run/heddle", clusterName, "bypass")
	t.Cleanup(func() {
		must(t, "down", "--name", clusterName)
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil || strings.Contains(string(mounts), pins) {
			t.Errorf("the bypass is still there: %v", err)
		}
	})
	must(t, "up", "--name", clusterName, "--tcp-bypass")
	must(t, "apply", "-f", harness.WriteFile(t, neighbours+"---\n"+echo))
	awaitReplica(t, "shop", "page")
	awaitReplica(t, "shop", "reader")
	awaitReplica(t, "shop", "echo")
	want, err := os.ReadFile("/usr/share/common-licenses/GPL-3")
	if err != nil {
		t.Fatal(err)
	}
	status := func() (s bypass.Status) {
		t.Helper()
		if err := json.Unmarshal([]byte(must(t, "bypass", "status", "-o", "json")), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	reader := replicaIn(t, "shop", "reader")
	// Looked up once: it is the agent that is asked.
	var address string
	harness.Eventually(t, 30*time.Second, "the page has an address", func() error {
		address, err = lookup(reader, "page.shop.svc.cluster.local")
		return err
	})
	read := func() error {
		got, err := reader.InNetwork("curl", "-sS", "--fail", "--max-time", "5", "--connect-to", "::"+address+":", "http://page.shop.svc.cluster.local/GPL-3")
		if err == nil && got != string(want) {
			err = fmt.Errorf("%d bytes arrived for %d, or other ones", len(got), len(want))
		}
		return err
	}
	harness.Eventually(t, 30*time.Second, "the page is read", read)
	calls := func() {
		t.Helper()
		// The sidecars keep their connections, which bypass TCP soon.
		harness.Eventually(t, 30*time.Second, "the page bypasses TCP", func() error {
			before := status()
			for range 20 {
				if err := read(); err != nil {
					return err
				}
			}
			after := status()
			// From the page to its sidecar, and from that to the reader's. The last leg, to an application, uses TCP.
			if more := after.Bytes - before.Bytes; more < 2*20*uint64(len(want))*9/10 {
				return fmt.Errorf("%d bytes bypassed TCP for 20 times %d on two legs: %+v", more, len(want), after)
			}
			return nil
		})
	}
	calls()
	if s := status(); !s.Attached || s.Connections == 0 {
		t.Errorf("%+v", s)
	}
	must(t, "check", "--wait", "60s")
	// In the workload's control group, as its application is.
	group := filepath.Join("/sys/fs/cgroup/unified", testCluster(t).Cgroup(), "shop.reader-0", "app", "cgroup.procs")
	python := func(program string, arguments ...string) string {
		t.Helper()
		asked := exec.Command("sh", append([]string{"-c", `echo $$ >"$0"; exec ip netns exec "$@"`, group, testCluster(t).Netns("shop", "reader-0"), "python3", "-c", program}, arguments...)...)
		out, err := asked.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return string(out)
	}
	before := status()
	if out := python(pieces, address, strconv.Itoa(proxyOf(t, "shop", "reader"))); out != "answered\n" {
		t.Errorf("requests in small pieces, while the sidecar did not read: %s", out)
	}
	if after := status(); after.Messages-before.Messages < 5000 || after.Fallbacks["receiver_behind"] == before.Fallbacks["receiver_behind"] {
		t.Errorf("the pieces were to go both ways: %+v, before %+v", after, before)
	}
	echoes, err := lookup(reader, "echo.shop.svc.cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"plain", "strict mutual TLS"} {
		if mode != "plain" {
			must(t, "apply", "-f", harness.WriteFile(t, strict))
			must(t, "check", "--wait", "60s")
		}
		before := status()
		hadReceived, hadSent := tcpBytes(t, reader)
		out := python(bulk, echoes)
		size, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
		if err != nil {
			t.Errorf("64 MiB there and back, %s: %s", mode, out)
		}
		// What bypasses TCP is counted as everything else is.
		harness.Eventually(t, 10*time.Second, "the connection is counted", func() error {
			if received, sent := tcpBytes(t, reader); received-hadReceived != size || sent-hadSent != size {
				return fmt.Errorf("%d bytes received and %d sent of %d, %s", received-hadReceived, sent-hadSent, size, mode)
			}
			return nil
		})
		if after := status(); after.Bytes == before.Bytes {
			t.Errorf("nothing of it bypassed TCP, %s: %+v", mode, after)
		} else if after.Refused["blocking"] == before.Refused["blocking"] {
			t.Errorf("the echo waits in calls that read, %s: %+v", mode, after)
		}
	}

	connections := status().Connections
	kill(t, agentPID(t))
	if err := read(); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	if _, err := os.Stat(filepath.Join(pins, "established")); err != nil {
		t.Errorf("the bypass went with the agent: %v", err)
	}
	must(t, "up", "--name", clusterName)
	if s := status(); s.Connections < connections {
		t.Errorf("%d connections, %d before the agent was killed", s.Connections, connections)
	}
	calls()
}
