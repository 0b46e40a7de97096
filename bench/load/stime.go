package load

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"heddle.io/heddle/bench/process"
)

// TLS12Cipher is the suite of TLS 1.2 that [STime] offers, by OpenSSL's name.
const TLS12Cipher = "ECDHE-ECDSA-AES128-GCM-SHA256"

var tls12 = &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12,
	CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}, CurvePreferences: tls13.CurvePreferences}

const (
	// sTimeBound is how long s_time may take beyond its time, of which it sees whole seconds only.
	sTimeBound = 20 * time.Second
	// sTimeSlack is by how many bytes answers may differ, as in a header field with a time.
	sTimeSlack = 16
)

var sTimeCounts = regexp.MustCompile(`(?m)^(\d+) connections in \d+ real seconds, (\d+) bytes read per connection$`)

// STime runs so many `openssl s_time -new` side by side: each opens a TLS 1.2 connection with
// [TLS12Cipher], asks once for target, reads the answer until its end, closes, and begins anew. s_time measures no
// latencies. It ends at its first failed connection, which is an error here.
func STime(at process.Place, address, target string, processes int, duration time.Duration) (Result, error) {
	// s_time looks at no answer, but counts its bytes.
	_, size, err := client{order: order{Address: address, Target: target}, config: tls12, now: time.Now}.transaction()
	if err != nil {
		return Result{}, fmt.Errorf("before s_time: %w", err)
	}
	// It writes "GET %s HTTP/1.0" and an empty line. Proxies refuse that version, or have no host for it.
	page := target + " HTTP/1.1\r\nHost: " + address + "\r\nConnection: close\r\nX-Version:"
	ctx, cancel := context.WithTimeout(context.Background(), duration+sTimeBound)
	defer cancel()
	commands, outputs := make([]*exec.Cmd, processes), make([]bytes.Buffer, processes)
	started := time.Now()
	for i := range commands {
		commands[i] = at.Command("openssl", "s_time", "-connect", address, "-new", "-tls1_2",
			"-cipher", TLS12Cipher, "-www", page, "-time", strconv.Itoa(int(duration.Seconds())))
		commands[i].Stdout, commands[i].Stderr = &outputs[i], &outputs[i]
		if err = at.Launch(commands[i]); err != nil {
			cancel()
			commands = commands[:i]
			break
		}
		defer context.AfterFunc(ctx, func() { _ = commands[i].Process.Kill() })()
	}
	var r Result
	for i, command := range commands {
		if failed := command.Wait(); failed != nil {
			err = errors.Join(err, fmt.Errorf("openssl s_time %s: %w\n%.500s", address, failed, outputs[i].String()))
			continue
		}
		n, bytesEach, failed := parseSTime(outputs[i].String())
		if failed == nil && (bytesEach < size-sTimeSlack || bytesEach > size+sTimeSlack) {
			failed = fmt.Errorf("openssl s_time %s read %d bytes per connection, an answer has %d", address, bytesEach, size)
		}
		err = errors.Join(err, failed)
		r.Requests += n
	}
	r.PerSecond = float64(r.Requests) / time.Since(started).Seconds()
	return r, err
}

func parseSTime(out string) (connections int64, bytesEach int, err error) {
	m := sTimeCounts.FindStringSubmatch(out)
	if m == nil {
		return 0, 0, fmt.Errorf("openssl s_time printed no counts:\n%.500s", out)
	}
	connections, err = strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return 0, 0, err
	}
	bytesEach, err = strconv.Atoi(m[2])
	return connections, bytesEach, err
}
