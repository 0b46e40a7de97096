//go:build conformance

package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
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
	dir   string
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

func TestConformance(t *testing.T) {
	files, divergences := load(t), loadDivergences(t)
	heddle, envoy := start(t, "heddle", files), start(t, "envoy", files)
	for i, file := range files {
		for _, c := range file.Cases {
			name := file.name + "/" + c.Name
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
	for _, d := range divergences {
		if !d.used {
			t.Errorf("divergences.yaml: %s does not differ so any more: %q and %q", d.Case, d.Heddle, d.Envoy)
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
		s.up.Play(&upstream.Script{Answer: []byte(c.Answer), Then: "fin"})
		defer s.up.Play(nil)
	}
	counters := append(append([]string(nil), c.Counters...), c.Grows...)
	before := s.count(t, counters)
	begun := time.Now()
	var out []string
	var got []int
	if c.Together {
		got, out = together(t, s.name, address, c)
	} else {
		got, out = oneByOne(t, s.name, address, c)
	}
	took := time.Since(begun)
	if fmt.Sprint(got) != fmt.Sprint([]int(c.Want)) {
		t.Errorf("%s answers %v, want %v", s.name, got, c.Want)
	}
	if len(c.Takes) == 2 && (took < ms(c.Takes[0]) || took > ms(c.Takes[1])) {
		t.Errorf("%s takes %v, want %v ms", s.name, took, c.Takes)
	}
	for _, r := range s.up.Take(time.Second) {
		out = append(out, "upstream sees "+r.Line)
		for _, f := range r.Fields {
			out = append(out, "upstream sees field "+settled(f))
		}
		for _, f := range r.Trailers {
			out = append(out, "upstream sees trailer "+f)
		}
		out = append(out, fmt.Sprintf("upstream sees body %q", r.Body))
	}
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

// together sends each request of a case on a connection of its own, all at once; the answers are sorted.
func together(t *testing.T, name, address string, c testCase) (got []int, out []string) {
	t.Helper()
	type result struct {
		answer answer
		err    error
	}
	results := make(chan result)
	for _, line := range c.Send {
		go func() {
			conn, err := net.DialTimeout("tcp", address, answerBound)
			if err != nil {
				results <- result{err: err}
				return
			}
			defer conn.Close()
			a, err := ask(conn, bufio.NewReader(conn), line, c)
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
	if c.Body != "" {
		fmt.Fprintf(&fields, "content-length: %d\r\n", len(c.Body))
	}
	if _, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\n%s%s\r\n%s", line, host, fields.String(), c.Body); err != nil {
		return answer{}, err
	}
	method, _, _ := strings.Cut(line, " ")
	response, err := http.ReadResponse(reader, &http.Request{Method: method})
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	a := answer{status: response.StatusCode, closes: response.Close}
	a.lines = append(a.lines, fmt.Sprintf("status %d", response.StatusCode), fmt.Sprintf("body %q", body))
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
	out := map[string]int{}
	if len(names) == 0 {
		return out
	}
	text, err := s.proxy.Admin("/stats/prometheus", answerBound)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(text, "\n") {
		name, _, _ := strings.Cut(line, "{")
		for _, wanted := range names {
			if name == wanted {
				n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
				if err != nil {
					t.Fatal(err)
				}
				out[wanted] += int(n)
			}
		}
	}
	return out
}
