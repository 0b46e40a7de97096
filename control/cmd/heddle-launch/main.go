// Command heddle-launch becomes a process that the agent starts: `heddle-launch FILE` what a file describes, and in it
// `heddle-launch init COMMAND [ARG...]` the first process of a sandbox. It is a program of its own because it stays, once
// for each process: it is small, and starts fast.
package main

import (
	"fmt"
	"os"

	"heddle.io/heddle/control/agent/process"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == process.InitArgument {
		os.Exit(process.Init(os.Args[2:]))
	}
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "heddle-launch is started by Heddle's agent")
		os.Exit(2)
	}
	// It returns only with an error, which it has told the agent.
	_ = process.Launch(os.Args[1])
	os.Exit(127)
}
