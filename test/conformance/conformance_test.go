//go:build conformance

package conformance

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/test/hostile/subject"
	"heddle.io/heddle/test/hostile/upstream"
)

const (
	firstPort    = 10000
	upstreamPort = 20000
	// answerBound is the longest wait for an answer.
	answerBound = 5 * time.Second
	// timerSlack is how much sooner than asked a proxy's timer may fire.
	timerSlack = 10 * time.Millisecond
	// logBound is the longest wait for the lines of an access log.
	logBound = 3 * time.Second
)

// binaries by subject.
var binaries = subject.Binaries{}

var passed, failed int

func TestMain(m *testing.M) {
	folder, envoy := os.Getenv("HEDDLE_E2E_BIN"), os.Getenv("HEDDLE_TEST_ENVOY")
	if folder == "" || envoy == "" {
		fmt.Fprintln(os.Stderr, "run these tests by `make conformance`, which builds heddle-proxy and sets HEDDLE_E2E_BIN and HEDDLE_TEST_ENVOY")
		os.Exit(1)
	}
	binaries["heddle"], binaries["envoy"] = filepath.Join(folder, "heddle-proxy"), envoy
	code := m.Run()
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if code == 0 && failed > 0 {
		code = 1
	}
	os.Exit(code)
}

// side is one proxy with its upstream.
type side struct {
	name  string
	proxy *subject.Proxy
	up    *upstream.HTTP1
	authz *authz
	dir   string
	// protocol that clients speak.
	protocol string
	// read lines of each access log.
	read map[string]int
}

func start(t *testing.T, name string, files []*caseFile) *side {
	t.Helper()
	s := &side{name: name, dir: t.TempDir(), read: map[string]int{}}
	address := subject.Address()
	var err error
	if s.up, err = upstream.NewHTTP1(net.JoinHostPort(address, strconv.Itoa(upstreamPort))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.up.Close)
	if s.authz, err = newAuthz(address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.authz.close)
	text, err := bootstrap(files, address, s.dir, subject.AdminPort, firstPort, upstreamPort)
	if err != nil {
		t.Fatal(err)
	}
	settings := subject.Settings{Name: name, Binary: binaries[name], Address: address, Dir: s.dir, Configuration: text}
	for i, file := range files {
		settings.Listeners = append(settings.Listeners, subject.Listener{Name: file.name, Port: firstPort + i})
	}
	if s.proxy, err = subject.Start(settings); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.proxy.Stop)
	return s
}

// protocols that clients ask by, each with proxies of its own: some cases leave something behind in them.
var protocols = []string{"HTTP/1.1", "HTTP/2"}

func TestConformance(t *testing.T) {
	files, divergences := load(t), loadDivergences(t)
	for _, protocol := range protocols {
		t.Run(strings.ReplaceAll(protocol, "/", ""), func(t *testing.T) { testProtocol(t, protocol, files, divergences) })
	}
	for _, d := range divergences {
		if !d.used && !strings.HasPrefix(d.Case, tunnels) && !strings.HasPrefix(d.Case, patternCases) {
			t.Errorf("divergences.yaml: %s does not differ so any more: %q and %q", d.Case, d.Heddle, d.Envoy)
		}
	}
}

func testProtocol(t *testing.T, protocol string, files []*caseFile, divergences []*divergence) {
	heddle, envoy := start(t, "heddle", files), start(t, "envoy", files)
	heddle.protocol, envoy.protocol = protocol, protocol
	for i, file := range files {
		for _, c := range file.Cases {
			if c.Only != "" && c.Only != protocol {
				continue
			}
			name := file.name + "/" + c.Name
			if protocol != protocols[0] {
				name += " (" + protocol + ")"
			}
			ok := t.Run(name, func(t *testing.T) {
				ours, theirs := heddle.run(t, i, file, c), envoy.run(t, i, file, c)
				compare(t, name, ours, theirs, divergences)
			})
			if ok {
				passed++
			} else {
				failed++
			}
		}
	}
}

// compare fails for every line that only one has and no divergence explains.
func compare(t *testing.T, name string, ours, theirs []string, divergences []*divergence) {
	t.Helper()
	t.Logf("envoy:\n%s", strings.Join(theirs, "\n"))
	left, right := without(ours, theirs), without(theirs, ours)
	for _, d := range divergences {
		if d.Case == name && has(left, d.Heddle) && has(right, d.Envoy) {
			d.used = true
			left, right = without(left, []string{d.Heddle}), without(right, []string{d.Envoy})
		}
	}
	for _, l := range left {
		t.Errorf("heddle only: %s", l)
	}
	for _, l := range right {
		t.Errorf("envoy only:  %s", l)
	}
}

func has(list []string, line string) bool {
	return line == "" || len(without([]string{line}, list)) == 0
}

// without returns the lines of a that b does not have as often.
func without(a, b []string) []string {
	left := map[string]int{}
	for _, l := range b {
		left[l]++
	}
	var out []string
	for _, l := range a {
		if left[l] > 0 {
			left[l]--
			continue
		}
		out = append(out, l)
	}
	return out
}

// run does a case and returns what came of it, a fact a line.
func (s *side) run(t *testing.T, number int, file *caseFile, c testCase) []string {
	t.Helper()
	address := s.proxy.At(subject.Listener{Port: firstPort + number})
	if c.Answer != "" {
		// An answer that overtakes the request is treated otherwise, and whether it does is chance.
		s.up.Play(&upstream.Script{Answer: append([]byte(c.Answer), c.Answer64...), Whole: true, Then: "fin"})
		defer s.up.Play(nil)
	}
	s.authz.play(t, c)
	counters := append(append([]string(nil), c.Counters...), c.Grows...)
	before := s.count(t, counters)
	begun := time.Now()
	var out []string
	var got []int
	switch {
	case s.protocol == "HTTP/2":
		got, out = byHTTP2(t, s.name, address, c)
	case c.Together:
		got, out = together(t, s.name, address, c)
	default:
		got, out = oneByOne(t, s.name, address, c)
	}
	took := time.Since(begun)
	if fmt.Sprint(got) != fmt.Sprint([]int(c.Want)) {
		t.Errorf("%s answers %v, want %v", s.name, got, c.Want)
	}
	// A timer of Envoy's counts from the time of its event loop, which may be some milliseconds old.
	if len(c.Takes) == 2 && (took < ms(c.Takes[0])-timerSlack || took > ms(c.Takes[1])) {
		t.Errorf("%s takes %v, want %v ms", s.name, took, c.Takes)
	}
	for _, r := range s.taken(c) {
		out = append(out, seen("upstream", r)...)
	}
	out = append(out, s.authz.seen()...)
	for _, line := range s.logged(t, file.name, len(c.Send)) {
		out = append(out, "log "+line)
	}
	after := s.count(t, counters)
	for _, name := range c.Counters {
		out = append(out, fmt.Sprintf("counter %s grows by %d", name, after[name]-before[name]))
	}
	for _, name := range c.Grows {
		if after[name] <= before[name] {
			t.Errorf("%s: counter %s has not grown", s.name, name)
		}
	}
	return out
}

// taken are the requests that the upstream got. Copies may come later than the answers.
func (s *side) taken(c testCase) []*upstream.Request {
	out := s.up.Take(time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); len(out) < len(c.Send)+c.Copies && c.Copies > 0 && time.Since(begun) < time.Second; {
		<-tick.C
		out = append(out, s.up.Take(time.Second)...)
	}
	return out
}

// seen is what a server saw, a fact a line.
func seen(who string, r *upstream.Request) []string {
	out := []string{who + " sees " + r.Line}
	for _, f := range r.Fields {
		// In requests of its own Envoy names the machine.
		if from, found := strings.CutPrefix(f, "x-forwarded-for: "); !found || !isOwn(from) {
			out = append(out, who+" sees field "+settled(f))
		}
	}
	for _, f := range r.Trailers {
		out = append(out, who+" sees trailer "+f)
	}
	return append(out, who+" sees body "+decoded(strings.Join(r.Values("content-encoding"), ","), r.Body))
}

// isOwn says whether an address is the machine's, and not loopback.
func isOwn(address string) bool {
	own, err := net.InterfaceAddrs()
	ip := net.ParseIP(address)
	return err == nil && !ip.IsLoopback() && slices.ContainsFunc(own, func(a net.Addr) bool {
		network, ok := a.(*net.IPNet)
		return ok && network.IP.Equal(ip)
	})
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// oneByOne sends the requests of a case on one connection, then looks what has become of it.
func oneByOne(t *testing.T, name, address string, c testCase) (got []int, out []string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, answerBound)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for i, line := range c.Send {
		answer, err := ask(conn, reader, line, c)
		if err != nil {
			t.Fatalf("%s: request %d (%s): %v", name, i+1, line, err)
		}
		got = append(got, answer.status)
		for _, l := range answer.lines {
			out = append(out, fmt.Sprintf("answer %d %s", i+1, l))
		}
		if answer.closes {
			return got, append(out, fmt.Sprintf("closed after answer %d", i+1))
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := reader.Peek(1); errors.Is(err, io.EOF) {
		return got, append(out, "closed after the last answer")
	}
	return got, append(out, "kept")
}

// byHTTP2 does what oneByOne and together do.
func byHTTP2(t *testing.T, name, address string, c testCase) (got []int, out []string) {
	t.Helper()
	if c.Together {
		return atOnce(t, name, c, func(line string) (answer, error) {
			own, err := newHTTP2Client(address)
			if err != nil {
				return answer{}, err
			}
			defer own.close()
			return own.ask(line, c)
		})
	}
	client, err := newHTTP2Client(address)
	if err != nil {
		t.Fatal(err)
	}
	defer client.close()
	for i, line := range c.Send {
		answer, err := client.ask(line, c)
		if err != nil {
			t.Fatalf("%s: request %d (%s): %v", name, i+1, line, err)
		}
		got = append(got, answer.status)
		for _, l := range answer.lines {
			out = append(out, fmt.Sprintf("answer %d %s", i+1, l))
		}
	}
	return got, append(out, client.kept())
}

// together sends each request of a case on a connection of its own, all at once; the answers are sorted.
func together(t *testing.T, name, address string, c testCase) (got []int, out []string) {
	t.Helper()
	return atOnce(t, name, c, func(line string) (answer, error) {
		conn, err := net.DialTimeout("tcp", address, answerBound)
		if err != nil {
			return answer{}, err
		}
		defer conn.Close()
		return ask(conn, bufio.NewReader(conn), line, c)
	})
}

// atOnce asks all requests of a case at the same time.
func atOnce(t *testing.T, name string, c testCase, ask func(line string) (answer, error)) (got []int, out []string) {
	t.Helper()
	type result struct {
		answer answer
		err    error
	}
	results := make(chan result)
	for _, line := range c.Send {
		go func() {
			a, err := ask(line)
			results <- result{a, err}
		}()
	}
	for range c.Send {
		r := <-results
		if r.err != nil {
			t.Fatalf("%s: %v", name, r.err)
		}
		got = append(got, r.answer.status)
		for _, l := range r.answer.lines {
			out = append(out, "answer "+l)
		}
	}
	sort.Ints(got)
	return got, out
}

type answer struct {
	status int
	lines  []string
	closes bool
}

func ask(conn net.Conn, reader *bufio.Reader, line string, c testCase) (answer, error) {
	_ = conn.SetDeadline(time.Now().Add(answerBound))
	host := "host: h\r\n"
	var fields strings.Builder
	for _, f := range c.Fields {
		if strings.HasPrefix(strings.ToLower(f), "host:") {
			host = ""
		}
		fields.WriteString(f + "\r\n")
	}
	body := c.Body + string(c.Body64)
	switch {
	case c.Chunks != nil:
		fields.WriteString("transfer-encoding: chunked\r\n")
		body = chunked(c.Chunks, c.Trailers)
	case body != "":
		fmt.Fprintf(&fields, "content-length: %d\r\n", len(body))
	}
	if _, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\n%s%s\r\n%s", line, host, fields.String(), body); err != nil {
		return answer{}, err
	}
	method, _, _ := strings.Cut(line, " ")
	response, err := http.ReadResponse(reader, &http.Request{Method: method})
	for err == nil && response.StatusCode == http.StatusContinue {
		response, err = http.ReadResponse(reader, &http.Request{Method: method})
	}
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	a := answer{status: response.StatusCode, closes: response.Close}
	a.lines = append(a.lines, fmt.Sprintf("status %d", response.StatusCode), "body "+decoded(response.Header.Get("Content-Encoding"), content))
	if err != nil {
		a.lines = append(a.lines, "cut")
	}
	// Of these ReadResponse makes something else.
	if response.ContentLength >= 0 {
		a.lines = append(a.lines, fmt.Sprintf("length %d", response.ContentLength))
	}
	for _, coding := range response.TransferEncoding {
		a.lines = append(a.lines, "transfer-encoding "+coding)
	}
	for name, values := range response.Header {
		for _, v := range values {
			if name != "Content-Length" {
				a.lines = append(a.lines, settled("field "+strings.ToLower(name)+": "+v))
			}
		}
	}
	for name, values := range response.Trailer {
		for _, v := range values {
			a.lines = append(a.lines, "trailer "+strings.ToLower(name)+": "+v)
		}
	}
	return a, nil
}

// decoded is a body as a line of text. Two compressors need not make the same bytes of the same text.
func decoded(coding string, body []byte) string {
	switch coding {
	case "gzip":
		reader, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return fmt.Sprintf("%q, which is not gzip: %v", body, err)
		}
		text, err := io.ReadAll(reader)
		if err != nil {
			return fmt.Sprintf("gzip of %q, then %v", text, err)
		}
		return fmt.Sprintf("gzip of %q", text)
	case "br", "zstd":
		// The unit tests of the codecs read what is inside.
		return fmt.Sprintf("%s, empty: %t", coding, len(body) == 0)
	}
	return fmt.Sprintf("%q", body)
}

// chunked is a body with transfer-encoding, a chunk for each piece.
func chunked(pieces, trailers []string) string {
	var out strings.Builder
	for _, p := range pieces {
		fmt.Fprintf(&out, "%x\r\n%s\r\n", len(p), p)
	}
	out.WriteString("0\r\n")
	for _, t := range trailers {
		out.WriteString(t + "\r\n")
	}
	out.WriteString("\r\n")
	return out.String()
}

// volatile are values that are different each time.
var volatile = regexp.MustCompile(`(?i)\b(date|x-request-id|x-envoy-upstream-service-time): .*`)

func settled(line string) string { return volatile.ReplaceAllString(line, "$1: ...") }

// logged waits for so many new lines of a listener's access log.
func (s *side) logged(t *testing.T, name string, n int) []string {
	t.Helper()
	path := filepath.Join(s.dir, name+".access")
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	bound := time.After(logBound)
	for {
		text, err := os.ReadFile(path)
		all := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		if err == nil && len(text) > 0 && len(all) >= s.read[name]+n {
			out := all[s.read[name]:]
			s.read[name] = len(all)
			return out
		}
		select {
		case <-tick.C:
		case <-bound:
			t.Fatalf("%s has logged %d lines, want %d more than %d: %v", s.name, len(all), n, s.read[name], err)
		}
	}
}

// count sums counters over their labels.
func (s *side) count(t *testing.T, names []string) map[string]int {
	t.Helper()
	if len(names) == 0 {
		return map[string]int{}
	}
	out, err := sums(s.proxy, names)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// sums of a proxy's counters over their labels.
func sums(proxy *subject.Proxy, names []string) (map[string]int, error) {
	text, err := proxy.Admin("/stats/prometheus", answerBound)
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, line := range strings.Split(text, "\n") {
		name := line[:max(0, strings.IndexAny(line, "{ "))]
		if slices.Contains(names, name) {
			n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			if err != nil {
				return nil, err
			}
			out[name] += int(n)
		}
	}
	return out, nil
}
