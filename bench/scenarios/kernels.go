package scenarios

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"heddle.io/heddle/bench/results"
)

const (
	kernelsManifest = "bench/kernels/Cargo.toml"
	kernelsProgram  = "bench/kernels/target/release/heddle-bench-kernels"
)

// kernels compares private RSA operations, ECDSA signatures and X25519 exchanges per second of one thread: ours, BoringSSL's and
// AWS-LC's in one program, OpenSSL's in its own, because its symbols clash with BoringSSL's. They take turns.
func kernels(o Options) (results.Result, error) {
	result := results.New("kernels", o.Runs, time.Now())
	build := exec.Command("cargo", "--color", "never", "build", "--release", "--locked", "--manifest-path", kernelsManifest, "--target-dir", "bench/kernels/target")
	build.Stderr = o.Progress
	if err := build.Run(); err != nil {
		return result, fmt.Errorf("build %s: %w", kernelsManifest, err)
	}
	values := map[string]map[string][]float64{}
	for run := range o.Runs {
		fmt.Fprintf(o.Progress, "run %d of %d\n", run+1, o.Runs)
		rates, err := librariesOnce(o.Duration)
		if err != nil {
			return result, err
		}
		rates["openssl"], err = opensslOnce(o.Duration)
		if err != nil {
			return result, err
		}
		for subject, figures := range rates {
			if values[subject] == nil {
				values[subject] = map[string][]float64{}
			}
			for figure, rate := range figures {
				values[subject][figure] = append(values[subject][figure], rate)
			}
		}
	}
	for subject, figures := range values {
		result.Subjects[subject] = map[string]float64{}
		for figure := range maps.Keys(figures) {
			result.Subjects[subject][figure] = results.Median(figures[figure])
		}
	}
	return result, nil
}

// librariesOnce measures everything but OpenSSL, about a quarter of the duration each, one counted round.
func librariesOnce(duration time.Duration) (map[string]map[string]float64, error) {
	command := exec.Command(kernelsProgram, "1", strconv.FormatInt(max(duration.Milliseconds()/4, 50), 10))
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kernelsProgram, err)
	}
	var rates map[string]map[string]float64
	if err := json.Unmarshal(output, &rates); err != nil {
		return nil, fmt.Errorf("%s wrote no rates: %w", kernelsProgram, err)
	}
	return rates, nil
}

func opensslOnce(duration time.Duration) (map[string]float64, error) {
	seconds := strconv.Itoa(max(int(duration.Seconds()/4), 1))
	output, err := exec.Command("openssl", "speed", "-mr", "-seconds", seconds, "rsa2048", "rsa3072", "rsa4096", "ecdsap256").Output()
	if err != nil {
		return nil, fmt.Errorf("openssl speed: %w", err)
	}
	return opensslRates(output)
}

// opensslRates reads the machine-readable lines `+F2:index:bits:signatures per second:verifications per second` of
// OpenSSL 3, and `+F4:index:bits:`… of ECDSA with P-256.
func opensslRates(output []byte) (map[string]float64, error) {
	rates := map[string]float64{}
	lines := bufio.NewScanner(bytes.NewReader(output))
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) < 4 {
			continue
		}
		var what string
		switch fields[0] {
		case "+F2":
			what = "rsa" + fields[2]
		case "+F4":
			what = "ecdsa_p" + fields[2]
		default:
			continue
		}
		rate, err := strconv.ParseFloat(fields[3], 64)
		if err != nil || rate < 1 {
			// OpenSSL 1.1 writes seconds here.
			return nil, fmt.Errorf("openssl speed wrote %q: the fourth field is no rate; OpenSSL 3 is needed", lines.Text())
		}
		rates[what+"_sign_per_second"] = rate
	}
	if len(rates) == 0 {
		return nil, fmt.Errorf("openssl speed wrote no line that begins with +F2 or +F4: %q", output)
	}
	return rates, nil
}
