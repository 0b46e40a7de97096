package controller

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/control/server/client"
)

// BenchmarkApplyThroughTheAPI is what a client waits for that applies to a controller with a store on a disk: 5000 objects
// in one batch, and one object when they are there. cpu-ms/op is the processor time that the controller takes for it, with
// what it does afterwards until the next.
func BenchmarkApplyThroughTheAPI(b *testing.B) {
	dir, c := controllerDirectory(b)
	p := startController(b, dir, nil)
	defer p.kill(b)
	if err := answering(b, c, p); err != nil {
		b.Fatalf("%v: %s", err, p.problems.String())
	}
	generation := 0
	manifests := func(n int) client.ApplyRequest {
		generation++
		var text strings.Builder
		for i := range n / 2 {
			fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: { name: s%[1]d, labels: { n: \"%[2]d\" } }\nspec: { selector: { app: a }, ports: [{ name: http, port: 80 }] }\n", i, generation)
		}
		for i := range n - n/2 {
			fmt.Fprintf(&text, "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: { name: s%[1]d, labels: { n: \"%[2]d\" } }\nspec:\n  hosts: [s%[1]d]\n  http: [{ route: [{ destination: { host: s%[1]d } }] }]\n", i, generation)
		}
		return client.ApplyRequest{Manifests: []client.Manifest{{File: "written.yaml", Content: text.String()}}}
	}
	if _, err := c.Apply(b.Context(), manifests(5000)); err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{5000, 1} {
		b.Run(fmt.Sprintf("objects=%d", size), func(b *testing.B) {
			before := p.processorTime(b)
			for b.Loop() {
				b.StopTimer()
				request := manifests(size)
				b.StartTimer()
				if _, err := c.Apply(b.Context(), request); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((p.processorTime(b)-before).Milliseconds())/float64(b.N), "cpu-ms/op")
		})
	}
}

// processorTime is what the controller has taken of the processors.
func (p *controllerProcess) processorTime(b *testing.B) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	// proc(5): utime and stime are the 12th and 13th fields after the name, in hundredths of a second.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var all time.Duration
	for _, field := range fields[11:13] {
		ticks, err := strconv.Atoi(field)
		if err != nil {
			b.Fatal(err)
		}
		all += time.Duration(ticks) * 10 * time.Millisecond
	}
	return all
}
