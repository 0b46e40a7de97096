package results

import "testing"

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{3, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := Median(c.in); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}

func TestWriteAndRead(t *testing.T) {
	dir := t.TempDir()
	r := Result{Scenario: "http1", Runs: 5, Subjects: map[string]map[string]float64{"nginx": {"p50_ms": 0.4}}}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	all, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Subjects["nginx"]["p50_ms"] != 0.4 {
		t.Errorf("read back %+v", all)
	}
}
