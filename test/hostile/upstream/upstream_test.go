package upstream

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestStrict(t *testing.T) {
	const ok = "GET /a HTTP/1.1\r\nhost: h\r\n"
	for text, problems := range map[string]int{
		ok + "\r\n":                                                    0,
		ok + "content-length: 3\r\n\r\n":                               0,
		ok + "connection: close\r\n\r\n":                               0,
		ok + "connection: x\r\n\r\n":                                   1,
		ok + "host: h\r\n\r\n":                                         1,
		ok + "a b: c\r\n\r\n":                                          1,
		ok + "a: \x01\r\n\r\n":                                         1,
		ok + "content-length: +3\r\n\r\n":                              1,
		ok + "content-length: 010\r\n\r\n":                             1,
		ok + "content-length: 00\r\n\r\n":                              1,
		ok + "content-length: 5, 5\r\n\r\n":                            1,
		ok + "transfer-encoding: x\r\n\r\n":                            1,
		"GET /a b HTTP/1.1\r\nhost: h\r\n\r\n":                         1,
		"GET /a HTTP/1.0\r\nhost: h\r\n\r\n":                           1,
		"GET /#a HTTP/1.1\r\nhost: h\r\n\r\n":                          1,
		"GET /a HTTP/1.1\nhost: h\n\n":                                 3,
		ok + "content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n": 1,
	} {
		if r, _ := parse([]byte(text)); len(r.Problems) != problems {
			t.Errorf("%q: %q, want %d", text, r.Problems, problems)
		}
	}
}

func TestModels(t *testing.T) {
	text, err := os.ReadFile("readings.txt")
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for line := range strings.Lines(string(text)) {
		target, servers, _ := strings.Cut(strings.TrimSpace(line), " ")
		if target == "#" {
			continue
		}
		read++
		if got := strings.Join(ReadAs(target, "/admin"), " "); got != servers {
			t.Errorf("%s: read so by %q, want %q", target, got, servers)
		}
	}
	if read < 20 {
		t.Errorf("%d targets in readings.txt", read)
	}
}

// TestTrailersAreTheProxys holds the lists of names against the proxy's.
func TestTrailersAreTheProxys(t *testing.T) {
	const file = "../../../proxy/crates/http/src/head/trailers.rs"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"ALLOWED": allowedTrailers, "ALLOWED_PREFIXES": allowedTrailerPrefixes, "ALLOWED_SUFFIXES": {"-bin"},
		"FORBIDDEN_PREFIXES": append([]string{":"}, steeringTrailerPrefixes...),
	} {
		list := regexp.MustCompile(`const ` + name + `: &\[&str\] = &\[([^\]]*)\];`).FindSubmatch(text)
		if list == nil {
			t.Errorf("no list %s in %s", name, file)
			continue
		}
		var got []string
		for _, one := range regexp.MustCompile(`(?m)"([^"]*)",?`).FindAllSubmatch(list[1], -1) {
			got = append(got, string(one[1]))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s in %s is %q, here it is %q", name, file, got, want)
		}
	}
}

// TestServer sends requests over one connection and looks at answers and record.
func TestServer(t *testing.T) {
	u, err := NewHTTP1("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	conn, err := net.Dial("tcp", u.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const sent = "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nHost: evil\r\nx-checksum: 1\r\n\r\n"
	if _, err := conn.Write([]byte("GET /size/10 HTTP/1.1\r\nhost: h\r\n\r\n" + sent)); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(conn)
	for _, want := range []struct {
		length int64
		closes bool
	}{{10, false}, {7, true}} {
		answer, err := http.ReadResponse(reader, nil)
		if err != nil || answer.ContentLength != want.length || answer.Close != want.closes {
			t.Fatalf("%+v, %v, want %+v", answer, err, want)
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
	}
	got := u.Take(time.Second)
	if len(got) != 2 || string(got[1].Body) != "abc" || len(got[1].Trailers) != 2 || len(got[1].Problems) != 1 || got[1].Connection != 1 {
		t.Errorf("%+v", got)
	}
	if u.Connections() != 1 || len(u.Take(time.Second)) != 0 {
		t.Error("not taken")
	}
}

// TestTakeWaits for what has been sent and not been read: by new connections, by one that is kept, whole or cut.
func TestTakeWaits(t *testing.T) {
	u, err := NewHTTP1("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	kept, err := net.Dial("tcp", u.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	for i := range 200 {
		cut, err := net.Dial("tcp", u.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = cut.Write([]byte("POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"))
		if err == nil {
			err = cut.Close()
		}
		if err == nil {
			_, err = kept.Write([]byte("GET / HTTP/1.1\r\nhost: h\r\n\r\n"))
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := u.Take(10 * time.Second); len(got) != 2 {
			t.Fatalf("round %d: %d requests, want 2", i, len(got))
		}
	}
	if n := u.Connections(); n != 201 {
		t.Errorf("%d connections, want 201", n)
	}
}
