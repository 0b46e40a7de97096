// Command train has heddle-proxy serve each of the paths that matter for a while: `make build PGO=1` runs one by it that counts
// what it executes.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"heddle.io/heddle/bench/paths"
	"heddle.io/heddle/bench/peers"
)

func main() {
	proxy := flag.String("heddle-proxy", "bin/heddle-proxy", "path of heddle-proxy")
	times := flag.Int("times", 10, "how many times the requests that a path is counted with")
	flag.Parse()
	if err := train(*proxy, *times); err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		os.Exit(1)
	}
}

func train(proxy string, times int) error {
	dir, err := os.MkdirTemp("", "heddle-train")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, path := range paths.All {
		requests := times * path.Requests
		fmt.Printf("%s: %d requests\n", path.Name, requests)
		own := filepath.Join(dir, path.Name)
		if err := os.Mkdir(own, 0o755); err != nil {
			return err
		}
		if err := path.Run(own, requests, peers.Binaries{Heddle: proxy}); err != nil {
			return fmt.Errorf("%s: %w", path.Name, err)
		}
	}
	return nil
}
