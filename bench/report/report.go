// Package report turns results into text, Markdown and pictures.
package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"heddle.io/heddle/bench/peers"
	"heddle.io/heddle/bench/results"
)

// figures in the order of the columns; figures not named here follow by name.
var order = []string{"cpu_us_per_request", "user_us_per_request", "requests_per_cpu_second", "requests_per_second", "p50_ms", "p99_ms", "errors", "rss_mb"}

// compared are the figures of which ratios to the baseline's are shown.
var compared = []string{"cpu_us_per_request", "requests_per_cpu_second", "requests_per_second", "p50_ms", "p99_ms"}

// Table writes one result as a Markdown table, which is also readable on a terminal, and one of ratios where there is a
// baseline.
func Table(w io.Writer, r results.Result) error {
	columns := columns(r)
	rows := [][]string{append([]string{r.Scenario}, columns...)}
	for _, name := range names(r) {
		row := []string{name}
		for _, column := range columns {
			row = append(row, number(r.Subjects[name][column]))
		}
		rows = append(rows, row)
	}
	var b strings.Builder
	align(&b, rows)
	if rows := ratios(r); len(rows) > 1 {
		b.WriteString("\n")
		align(&b, rows)
	}
	fmt.Fprintf(&b, "\n%d interleaved runs, medians; %s, Linux %s, %s.", r.Runs, r.CPU, r.Kernel, r.Date.Format("2006-01-02"))
	if r.Share > 0 {
		fmt.Fprintf(&b, " Each proxy had %d %% of a processor.", r.Share)
	}
	if r.ClientBound {
		b.WriteString(" The client or backend was the bottleneck for at least one subject: compare CPU per request, not requests per second. With -share each proxy is its own bottleneck.")
	}
	b.WriteString("\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	return Published(w, r)
}

// ratios has a heading and a row for each subject but the baseline; nothing where the baseline was not measured.
func ratios(r results.Result) [][]string {
	base, measured := r.Subjects[r.Baseline]
	if !measured {
		return nil
	}
	figures := slices.DeleteFunc(slices.Clone(compared), func(figure string) bool { return base[figure] == 0 })
	rows := [][]string{append([]string{"against " + r.Baseline}, figures...)}
	for _, name := range names(r) {
		if name == r.Baseline {
			continue
		}
		row := []string{name}
		for _, figure := range figures {
			row = append(row, fmt.Sprintf("%.2f×", r.Subjects[name][figure]/base[figure]))
		}
		rows = append(rows, row)
	}
	return rows
}

// align writes rows of which the first is the heading.
func align(b *strings.Builder, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for n, row := range rows {
		for i, cell := range row {
			fmt.Fprintf(b, "| %-*s ", widths[i], cell)
		}
		b.WriteString("|\n")
		if n == 0 {
			for _, width := range widths {
				b.WriteString("| " + strings.Repeat("-", width) + " ")
			}
			b.WriteString("|\n")
		}
	}
}

// charted is the figure of a scenario's chart, and of its variants', where it is not the first one.
var charted = map[string]string{"p2": "p99_ms", "p3": "added_p95_ms", "mesh": "sidecars_us", "p5": "p99_ms_1k", "p6": "added_us_4k", "p8": "endpoint_p99_ms"}

// Charted is the figure of a result that its chart shows.
func Charted(r results.Result) string {
	// Variants, such as p5-even, have that of what they vary.
	kind, _, _ := strings.Cut(r.Scenario, "-")
	return cmp.Or(charted[r.Scenario], charted[kind], columns(r)[0])
}

// Markdown writes all results with a bar chart each; charts maps a scenario to its picture's path.
func Markdown(w io.Writer, all []results.Result, charts map[string]string) error {
	if _, err := fmt.Fprint(w, "# Benchmark report\n"); err != nil {
		return err
	}
	for _, r := range all {
		if _, err := fmt.Fprintf(w, "\n## %s\n\n", r.Scenario); err != nil {
			return err
		}
		if err := Table(w, r); err != nil {
			return err
		}
		if path := charts[r.Scenario]; path != "" {
			if _, err := fmt.Fprintf(w, "\n![%s: %s](%s)\n", r.Scenario, Charted(r), path); err != nil {
				return err
			}
		}
	}
	return nil
}

// Chart writes an SVG bar chart of one of a result's figures, Charted.
func Chart(w io.Writer, r results.Result) error {
	figure := Charted(r)
	subjects := slices.DeleteFunc(names(r), func(name string) bool {
		_, measured := r.Subjects[name][figure]
		return !measured
	})
	top := 0.0
	for _, name := range subjects {
		top = max(top, r.Subjects[name][figure])
	}
	const left, bar, full = 110, 26, 420
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="640" height="%d" font-family="sans-serif" font-size="14"><text x="8" y="22" font-weight="bold">%s: %s</text>`, 40+len(subjects)*(bar+8), r.Scenario, figure)
	for i, name := range subjects {
		y, value := 36+i*(bar+8), r.Subjects[name][figure]
		width, colour := 0.0, "#9aa5b1"
		if top > 0 {
			width = full * value / top
		}
		if i == 0 {
			colour = "#2f6f9f"
		}
		fmt.Fprintf(&b, `<text x="8" y="%d">%s</text><rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d">%s</text>`,
			y+18, name, left, y, width, bar, colour, left+width+6, y+18, number(value))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func columns(r results.Result) []string {
	set := map[string]bool{}
	for _, figures := range r.Subjects {
		for name := range figures {
			set[name] = true
		}
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(order, a), rank(order, b)), cmp.Compare(a, b))
	})
}

func names(r results.Result) []string {
	return slices.SortedFunc(maps.Keys(r.Subjects), func(a, b string) int {
		// Those that end with a number, by the number.
		kindA, numberA := cutNumber(a)
		kindB, numberB := cutNumber(b)
		return cmp.Or(cmp.Compare(rank(peers.NamesNew, a), rank(peers.NamesNew, b)), cmp.Compare(kindA, kindB), cmp.Compare(numberA, numberB))
	})
}

// cutNumber splits a name before the number that it ends with; 0 where it does not.
func cutNumber(name string) (string, int) {
	kind := strings.TrimRight(name, "0123456789")
	n, err := strconv.Atoi(name[len(kind):])
	if err != nil {
		return name, 0
	}
	return kind, n
}

func rank(list []string, name string) int {
	if i := slices.Index(list, name); i >= 0 {
		return i
	}
	return len(list)
}

func number(v float64) string {
	switch {
	case v == float64(int64(v)):
		return fmt.Sprintf("%d", int64(v))
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
