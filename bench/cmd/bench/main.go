// Command bench measures heddle-proxy against its peers; `make bench` calls it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"heddle.io/heddle/bench/controlplane"
	"heddle.io/heddle/bench/load"
	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/process"
	"heddle.io/heddle/bench/report"
	"heddle.io/heddle/bench/results"
	"heddle.io/heddle/bench/scenarios"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == scenarios.ControllerFlag {
		serveController(os.Args[2])
		return
	}
	if len(os.Args) == 3 && os.Args[1] == peers.GRPCFlag {
		exitOn(peers.ServeGRPC(os.Args[2]))
		return
	}
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case load.ClientFlag:
			exitOn(load.OpenConnections(os.Stdin, os.Stdout, os.Stderr))
			return
		case load.TurnsFlag:
			exitOn(load.TakeTurns(os.Stdin, os.Stdout))
			return
		case load.RateFlag:
			exitOn(load.AskAtRate(os.Stdin, os.Stdout))
			return
		case load.MixedFlag:
			exitOn(load.AskMixed(os.Stdin, os.Stdout))
			return
		}
	}
	scenario := flag.String("scenario", "", "scenario to run; all by default")
	runs := flag.Int("runs", 5, "counted runs of each subject, interleaved")
	duration := flag.Duration("duration", 5*time.Second, "length of one run, whole seconds")
	subjects := flag.String("subjects", "", "what to compare, such as "+strings.Join(peers.NamesNew, ",")+"; by default what the scenario is about")
	heddle := flag.String("heddle-proxy", "bin/heddle-proxy", "path of heddle-proxy, a release build")
	command := flag.String("heddle", "bin/heddle", "p3: path of heddle, the command line, with heddle-launch beside it")
	relay := flag.String("relay", "proxy/target/release/examples/relay", "path of the relay, a subject that reads nothing of what it passes on")
	envoy := flag.String("envoy", "envoy", "path of a stock Envoy")
	out := flag.String("out", "bench/results/latest", "folder for the results")
	share := flag.Int("share", 0, "percent of its processor that each proxy gets (as root), where the client would be the bottleneck; by default all of it")
	rate := flag.Int("rate", 0, "requests per second; p2, p3, mesh: of the runs at a fixed rate, by default six tenths of the most of p2 and 4000 of the others; p5 and its variants: by default what takes three quarters of a processor")
	var mesh scenarios.Mesh
	flag.IntVar(&mesh.Size.Services, "services", 1000, "p8: services of the mesh")
	flag.IntVar(&mesh.Size.Endpoints, "endpoints", 3, "p8: endpoints of each service")
	flag.IntVar(&mesh.Size.Namespaces, "namespaces", 10, "p8: namespaces that the services are spread over")
	flag.IntVar(&mesh.Size.ReplicasPerAgent, "replicas-per-agent", 1000, "p8: replicas that one agent reports")
	flag.IntVar(&mesh.Changes, "changes", 50, "p8: how often an endpoint's readiness changes")
	proxies := flag.String("proxies", "20,100", "p8: numbers of proxies, each measured with a controller of its own")
	flag.Parse()
	if *rate < 0 || *rate > load.MostPerSecond {
		fmt.Fprintf(os.Stderr, "bench: -rate: %d is no number of requests per second up to %d\n", *rate, load.MostPerSecond)
		os.Exit(2)
	}
	if *share != 0 && (*share < process.LeastQuota || *share > 100) {
		fmt.Fprintf(os.Stderr, "bench: -share: %d percent of a processor: want %d to 100\n", *share, process.LeastQuota)
		os.Exit(2)
	}
	for number := range strings.SplitSeq(*proxies, ",") {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 {
			fmt.Fprintf(os.Stderr, "bench: -proxies: %q is no number of proxies\n", number)
			os.Exit(2)
		}
		mesh.Proxies = append(mesh.Proxies, n)
	}
	options := scenarios.Options{Runs: *runs, Duration: *duration, Subjects: strings.FieldsFunc(*subjects, func(r rune) bool { return r == ',' }), Progress: os.Stderr, Rate: *rate, Share: *share, Mesh: mesh,
		Binaries: peers.Binaries{Heddle: *heddle, Envoy: *envoy, Command: *command, Relay: *relay}}
	if err := run(*scenario, *out, options); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// serveController runs the controller that a scenario measures, until it is stopped.
func serveController(dir string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := controlplane.Serve(ctx, dir); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
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
		if options.Share > 0 && !s.Shares {
			return fmt.Errorf("-share: %s gives no proxy a share of a processor: name a scenario that does, such as http1, https or h2", s.Name)
		}
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

// exitOn ends a client's program that failed.
func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
