// Package load runs the field's load generators and reads what they print, and has clients for what those do not do.
package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"heddle.io/heddle/bench/process"
)

// Result is what a load generator saw.
type Result struct {
	// Requests that were answered with 2xx, and Errors: everything else.
	Requests, Errors int64
	// PerSecond is the rate of good answers.
	PerSecond float64
	// P50, P95 and P99 are latencies; zero where the load generator does not measure them (P95 is [AtRate]'s alone).
	P50, P95, P99 time.Duration
	// CPU is the generator's own processor time, and Switches how often its processor was given to something else.
	CPU      time.Duration
	Switches int64
}

// spent fills in what the generator took for it.
func (r *Result) spent(generator *os.ProcessState) {
	r.CPU = generator.UserTime() + generator.SystemTime()
	if usage, ok := generator.SysUsage().(*syscall.Rusage); ok {
		r.Switches = usage.Nvcsw + usage.Nivcsw
	}
}

// run gives what a generator prints, and what it took.
func run(at process.Place, argv ...string) (string, *os.ProcessState, error) {
	cmd := at.Command(argv...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := at.Launch(cmd); err != nil {
		return "", nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	if err := cmd.Wait(); err != nil {
		return "", nil, fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, &out)
	}
	return out.String(), cmd.ProcessState, nil
}

var (
	wrkRequests = regexp.MustCompile(`(\d+) requests in ([0-9.]+)(us|ms|s|m)`)
	wrkLatency  = regexp.MustCompile(`(?m)^\s+(50|99)%\s+([0-9.]+)(us|ms|s|m)`)
	wrkSocket   = regexp.MustCompile(`Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)`)
	wrkStatus   = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
)

// Wrk asks url over HTTP/1.1 with that many connections; headers are "Name: value".
func Wrk(at process.Place, url string, connections int, duration time.Duration, headers ...string) (Result, error) {
	var args []string
	for _, h := range headers {
		args = append(args, "-H", h)
	}
	return wrk(at, url, connections, duration, args...)
}

func wrk(at process.Place, url string, connections int, duration time.Duration, more ...string) (Result, error) {
	args := append([]string{"wrk", "--latency", "-t1", "-c", strconv.Itoa(connections), "-d", fmt.Sprintf("%ds", int(duration.Seconds()))}, more...)
	out, used, err := run(at, append(args, url)...)
	if err != nil {
		return Result{}, err
	}
	r, err := parseWrk(out)
	r.spent(used)
	return r, err
}

func parseWrk(out string) (Result, error) {
	var r Result
	m := wrkRequests.FindStringSubmatch(out)
	if m == nil {
		return r, fmt.Errorf("wrk printed no count of requests:\n%s", out)
	}
	total, _ := strconv.ParseInt(m[1], 10, 64)
	took, err := duration(m[2], m[3])
	if err != nil {
		return r, err
	}
	for _, m := range wrkLatency.FindAllStringSubmatch(out, -1) {
		d, err := duration(m[2], m[3])
		if err != nil {
			return r, err
		}
		if m[1] == "50" {
			r.P50 = d
		} else {
			r.P99 = d
		}
	}
	failed := int64(0)
	if m := wrkStatus.FindStringSubmatch(out); m != nil {
		failed, _ = strconv.ParseInt(m[1], 10, 64)
	}
	r.Requests, r.Errors = total-failed, failed
	if m := wrkSocket.FindStringSubmatch(out); m != nil {
		for _, count := range m[1:] {
			n, _ := strconv.ParseInt(count, 10, 64)
			r.Errors += n
		}
	}
	r.PerSecond = float64(r.Requests) / took.Seconds()
	return r, nil
}

func duration(number, unit string) (time.Duration, error) {
	if unit == "m" {
		unit = "m0s"
	}
	d, err := time.ParseDuration(number + unit)
	if err != nil && strings.HasPrefix(unit, "m0") { // wrk prints minutes with a fraction
		minutes, err := strconv.ParseFloat(number, 64)
		return time.Duration(minutes * float64(time.Minute)), err
	}
	return d, err
}

var h2Counts = regexp.MustCompile(`(?m)^status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx`)
var h2Requests = regexp.MustCompile(`(?m)^requests: (\d+) total, (\d+) started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout`)

// H2load asks url over HTTP/2 with clients × streams in flight until requests are answered.
func H2load(at process.Place, url string, clients, streams, requests int) (Result, error) {
	return h2load(at, requests, "-c", strconv.Itoa(clients), "-m", strconv.Itoa(streams), url)
}

// H2loadGRPC makes unary calls of gRPC, each with the message in a file.
func H2loadGRPC(at process.Place, url, message string, clients, streams, requests int) (Result, error) {
	return h2load(at, requests, "-c", strconv.Itoa(clients), "-m", strconv.Itoa(streams), "-d", message,
		"-H", "content-type: application/grpc", "-H", "te: trailers", url)
}

func h2load(at process.Place, requests int, args ...string) (Result, error) {
	dir, err := os.MkdirTemp("", "h2load")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	log := filepath.Join(dir, "log")
	started := time.Now()
	out, used, err := run(at, append([]string{"h2load", "-t1", "-n", strconv.Itoa(requests), "--log-file=" + log}, args...)...)
	took := time.Since(started)
	if err != nil {
		return Result{}, err
	}
	r, err := parseH2load(out)
	if err != nil {
		return r, err
	}
	r.spent(used)
	r.PerSecond = float64(r.Requests) / took.Seconds()
	r.P50, r.P99, err = h2Percentiles(log)
	return r, err
}

func parseH2load(out string) (Result, error) {
	status, requests := h2Counts.FindStringSubmatch(out), h2Requests.FindStringSubmatch(out)
	if status == nil || requests == nil {
		return Result{}, fmt.Errorf("h2load printed no counts:\n%s", out)
	}
	good, _ := strconv.ParseInt(status[1], 10, 64)
	total, _ := strconv.ParseInt(requests[1], 10, 64)
	return Result{Requests: good, Errors: total - good}, nil
}

// h2Percentiles reads h2load's log: start time, status and duration in microseconds, a line per request.
func h2Percentiles(path string) (p50, p99 time.Duration, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer file.Close()
	var times []int64
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 {
			return 0, 0, fmt.Errorf("h2load log line %q: want three fields", lines.Text())
		}
		us, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("h2load log line %q: %w", lines.Text(), err)
		}
		times = append(times, us)
	}
	if err := lines.Err(); err != nil {
		return 0, 0, err
	}
	if len(times) == 0 {
		return 0, 0, errors.New("h2load logged no request")
	}
	slices.Sort(times)
	at := func(q float64) time.Duration { return time.Duration(percentile(times, q)) * time.Microsecond }
	return at(0.50), at(0.99), nil
}
