// Command bench measures heddle-proxy against its peers; `make bench` calls it.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/report"
	"heddle.io/heddle/bench/results"
	"heddle.io/heddle/bench/scenarios"
)

func main() {
	scenario := flag.String("scenario", "", "scenario to run; all by default")
	runs := flag.Int("runs", 5, "counted runs of each subject, interleaved")
	duration := flag.Duration("duration", 5*time.Second, "length of one run, whole seconds")
	subjects := flag.String("subjects", strings.Join(peers.Names, ","), "what to compare")
	heddle := flag.String("heddle-proxy", "bin/heddle-proxy", "path of heddle-proxy, a release build")
	envoy := flag.String("envoy", "envoy", "path of a stock Envoy")
	out := flag.String("out", "bench/results/latest", "folder for the results")
	flag.Parse()
	options := scenarios.Options{Runs: *runs, Duration: *duration, Subjects: strings.Split(*subjects, ","), Progress: os.Stderr,
		Binaries: peers.Binaries{Heddle: *heddle, Envoy: *envoy}}
	if err := run(*scenario, *out, options); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(name, out string, options scenarios.Options) error {
	chosen := scenarios.All
	if name != "" {
		one, err := scenarios.Find(name)
		if err != nil {
			return err
		}
		chosen = []scenarios.Scenario{one}
	}
	for _, s := range chosen {
		fmt.Fprintf(os.Stderr, "%s: %s\n", s.Name, s.Summary)
		result, err := s.Run(options)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		if err := result.Write(out); err != nil {
			return err
		}
		if err := report.Table(os.Stdout, result); err != nil {
			return err
		}
		fmt.Println()
	}
	return writeReport(out)
}

// writeReport makes the Markdown report and its pictures from all results in the folder.
func writeReport(dir string) error {
	all, err := results.Read(dir)
	if err != nil {
		return err
	}
	charts := map[string]string{}
	for _, r := range all {
		charts[r.Scenario] = r.Scenario + ".svg"
		file, err := os.Create(filepath.Join(dir, charts[r.Scenario]))
		if err != nil {
			return err
		}
		if err := report.Chart(file, r); err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	file, err := os.Create(filepath.Join(dir, "README.md"))
	if err != nil {
		return err
	}
	if err := report.Markdown(file, all, charts); err != nil {
		return err
	}
	return file.Close()
}
