package report

import (
	"slices"
	"strings"
	"testing"

	"heddle.io/heddle/bench/results"
)

func TestReport(t *testing.T) {
	r := results.Result{Scenario: "http1", Runs: 5, CPU: "test", Kernel: "6.1", ClientBound: true, Share: 75, Subjects: map[string]map[string]float64{
		"envoy": {"cpu_us_per_request": 41.25, "p50_ms": 0.5}, "heddle": {"cpu_us_per_request": 10, "p50_ms": 0.25}}}
	var table, chart, all strings.Builder
	if err := Table(&table, r); err != nil {
		t.Fatal(err)
	}
	want := "| http1  | cpu_us_per_request | p50_ms |\n| ------ | ------------------ | ------ |\n| heddle | 10                 | 0.25   |\n| envoy  | 41.2               | 0.50   |\n"
	if !strings.HasPrefix(table.String(), want) {
		t.Errorf("got\n%s\nwant it to begin with\n%s", table.String(), want)
	}
	if !strings.Contains(table.String(), "bottleneck") {
		t.Error("a client-bound result does not say so")
	}
	if !strings.Contains(table.String(), "Each proxy had 75 % of a processor.") {
		t.Errorf("the proxies' share is not told:\n%s", table.String())
	}
	if strings.Contains(table.String(), "against") {
		t.Error("there are ratios to no baseline")
	}
	if err := Chart(&chart, r); err != nil {
		t.Fatal(err)
	}
	if strings.Count(chart.String(), "<rect") != 2 {
		t.Errorf("want a bar per subject:\n%s", chart.String())
	}
	if err := Markdown(&all, []results.Result{r}, map[string]string{"http1": "http1.svg"}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(all.String(), "(http1.svg)") {
		t.Errorf("no picture in\n%s", all.String())
	}
}

func TestSubjectsAreInTheOrderOfTheirNumbers(t *testing.T) {
	r := results.Result{Scenario: "p2", Subjects: map[string]map[string]float64{"on-16": {}, "off-128": {}, "off-16": {}, "on-128": {}, "direct": {}, "envoy": {}}}
	want := []string{"envoy", "direct", "off-16", "off-128", "on-16", "on-128"}
	if got := names(r); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRatiosToTheBaseline(t *testing.T) {
	r := results.Result{Scenario: "p1", Baseline: "software", Subjects: map[string]map[string]float64{
		"software":    {"requests_per_cpu_second": 1500, "p99_ms": 300, "errors": 2},
		"multibuffer": {"requests_per_cpu_second": 3750, "p99_ms": 126, "errors": 1}}}
	var table strings.Builder
	if err := Table(&table, r); err != nil {
		t.Fatal(err)
	}
	want := "\n| against software | requests_per_cpu_second | p99_ms |\n| ---------------- | ----------------------- | ------ |\n| multibuffer      | 2.50×                   | 0.42×  |\n"
	if !strings.Contains(table.String(), want) {
		t.Errorf("got\n%s\nwant in it\n%s", table.String(), want)
	}
	r.Baseline = "nginx"
	table.Reset()
	if err := Table(&table, r); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(table.String(), "against") {
		t.Errorf("ratios to a baseline that was left out:\n%s", table.String())
	}
}

func TestWhatOthersPublishedStandsBeside(t *testing.T) {
	r := results.Result{Scenario: "p2", Subjects: map[string]map[string]float64{"off-32": {"p99_ms": 2}, "on-32": {"p99_ms": 1.5}, "off-64": {"p99_ms": 4}}}
	var table strings.Builder
	if err := Table(&table, r); err != nil {
		t.Fatal(err)
	}
	want := "| 32 connections      | 4.48   | 3.96  | 0.89× | 2           | 1.50  | 0.75× |\n"
	if !strings.HasSuffix(table.String(), want) {
		t.Errorf("got\n%s\nwant it to end with the comparison that was measured whole\n%s", table.String(), want)
	}
	r.Scenario, r.Subjects = "p5", map[string]map[string]float64{"none": {"p99_ms_1k": 10}, "load-aware": {"p99_ms_1k": 4}}
	table.Reset()
	if err := Published(&table, r); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "|        |       | 0.51× | 10          | 4     | 0.40× |") {
		t.Errorf("got\n%s\nwant the published ratio without figures", table.String())
	}
}

func TestChartsShowWhatTheScenarioIsAbout(t *testing.T) {
	r := results.Result{Scenario: "p3", Subjects: map[string]map[string]float64{
		"direct": {"p95_ms": 0.2}, "heddle": {"p95_ms": 0.3, "added_p95_ms": 0.1}, "envoy": {"p95_ms": 0.6, "added_p95_ms": 0.4}}}
	var chart strings.Builder
	if err := Chart(&chart, r); err != nil {
		t.Fatal(err)
	}
	if got := chart.String(); !strings.Contains(got, "added_p95_ms") || strings.Count(got, "<rect") != 2 || strings.Contains(got, "direct") {
		t.Errorf("want what sidecars add, without what has none:\n%s", got)
	}
	for _, name := range []string{"p5", "p5-even", "p5-late"} {
		r := results.Result{Scenario: name, Subjects: map[string]map[string]float64{"none": {"requests_per_second": 1000, "p99_ms_1k": 3}}}
		if figure := Charted(r); figure != "p99_ms_1k" {
			t.Errorf("%s draws %s", name, figure)
		}
	}
}
