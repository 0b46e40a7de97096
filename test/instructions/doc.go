// Package instructions counts the instructions that heddle-proxy itself executes for a request, under callgrind, on the
// paths of bench/paths, and compares them with what counts.yaml keeps: a change that costs shows itself, on whatever machine
// and however busy. The kernel's share is not in it; `make bench` measures time.
package instructions
