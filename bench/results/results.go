// Package results is the data format of the benchmarks: one JSON file per scenario.
package results

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Result is what one scenario measured.
type Result struct {
	Scenario string    `json:"scenario"`
	Date     time.Time `json:"date"`
	CPU      string    `json:"cpu"`
	Kernel   string    `json:"kernel"`
	// Runs is the number of interleaved runs whose medians are given.
	Runs int `json:"runs"`
	// ClientBound says that the client or the backend was the bottleneck for at least one subject: its requests per
	// second then say little. Its CPU per request has what waiting costs it in it.
	ClientBound bool `json:"client_bound"`
	// Share is how much of a processor each proxy was given, in percent; zero means all of it.
	Share int `json:"share,omitempty"`
	// Baseline is the subject that the others are compared with, if there is one.
	Baseline string `json:"baseline,omitempty"`
	// Subjects by name, each with its figures by name.
	Subjects map[string]map[string]float64 `json:"subjects"`
}

// New is an empty result for this machine.
func New(scenario string, runs int, now time.Time) Result {
	return Result{Scenario: scenario, Date: now.UTC().Truncate(time.Second), CPU: cpuName(), Kernel: kernel(), Runs: runs,
		Subjects: map[string]map[string]float64{}}
}

// Write puts the result into dir/<scenario>.json.
func (r Result) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, r.Scenario+".json"), append(data, '\n'), 0o644)
}

// Read reads every result of a directory, sorted by scenario.
func Read(dir string) ([]Result, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []Result
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var r Result
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// Median of values, which are sorted in place; the mean of the middle two when their number is even.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}

func cpuName() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func kernel() string {
	data, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(data))
}
