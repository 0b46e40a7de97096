// Command heddle is the whole control plane in one program: command line, controller and agent.
package main

import (
	"os"

	"heddle.io/heddle/control/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
