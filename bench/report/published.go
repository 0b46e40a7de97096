package report

import (
	"fmt"
	"io"
	"strings"

	"heddle.io/heddle/bench/results"
)

// comparison is a change that somebody else published, and what measures the same here. The machines were others, so it is
// the changes that compare.
type comparison struct {
	what string
	// before and after are the published figures; none where only their ratio was published.
	before, after float64
	// ratio is after to before.
	ratio float64
	// figure of the two subjects of ours.
	figure                    string
	beforeSubject, nowSubject string
}

// change is a comparison of two published figures.
func change(what string, before, after float64, figure, beforeSubject, nowSubject string) comparison {
	return comparison{what, before, after, after / before, figure, beforeSubject, nowSubject}
}

// published has the comparisons of each scenario: Intel's accelerations of Envoy and Istio, as published for them.
var published = map[string][]comparison{
	"p1": {
		change("requests/s, RSA-2048 one by one and eight at a time, 400 clients", 3304, 6339, "requests_per_second", "software", "multibuffer"),
		change("p99, ms", 312, 165, "p99_ms", "software", "multibuffer"),
	},
	"p2": {
		change("p99 without and with bypass, ms, 16 connections", 2.556, 2.428, "p99_ms", "off-16", "on-16"),
		change("32 connections", 4.478, 3.964, "p99_ms", "off-32", "on-32"),
		change("64 connections", 8.677, 7.873, "p99_ms", "off-64", "on-64"),
		change("128 connections", 17.194, 15.900, "p99_ms", "off-128", "on-128"),
	},
	"p3": {
		change("p95 without and with sidecars, ms, 10 connections at a fixed rate", 0.385, 0.846, "p95_ms", "direct", "heddle"),
		change("the same, mutual TLS", 0.385, 0.969, "p95_ms", "direct", "heddle-mtls"),
		change("requests/s at most, 16 connections", 58068, 43385, "requests_per_second", "direct", "heddle"),
		change("the same, mutual TLS", 58068, 39754, "requests_per_second", "direct", "heddle-mtls"),
	},
	"p5": {
		{what: "p99 of 1 kB, 4000 connections, kernel's balance and by load (theirs by hardware)", ratio: 1 / 1.96, figure: "p99_ms_1k", beforeSubject: "none", nowSubject: "load-aware"},
	},
}

// Published writes what others published of the scenario beside the result, as a Markdown table; nothing where there is nothing
// published, or where a subject was not measured.
func Published(w io.Writer, r results.Result) error {
	rows := [][]string{{"published, and here", "before", "after", "ratio", "here before", "after", "ratio"}}
	for _, c := range published[r.Scenario] {
		before, after := r.Subjects[c.beforeSubject][c.figure], r.Subjects[c.nowSubject][c.figure]
		if before == 0 || after == 0 {
			continue
		}
		row := []string{c.what, "", "", fmt.Sprintf("%.2f×", c.ratio), number(before), number(after), fmt.Sprintf("%.2f×", after/before)}
		if c.before != 0 {
			row[1], row[2] = number(c.before), number(c.after)
		}
		rows = append(rows, row)
	}
	if len(rows) == 1 {
		return nil
	}
	var b strings.Builder
	b.WriteString("\n")
	align(&b, rows)
	_, err := io.WriteString(w, b.String())
	return err
}
