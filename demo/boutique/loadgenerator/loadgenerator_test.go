package loadgenerator

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"heddle.io/heddle/demo/boutique/role"
)

func TestParseRate(t *testing.T) {
	for text, want := range map[string]float64{"": 2, "0.5": 0.5, "200": 200} {
		if got, err := parseRate(text); err != nil || got != want {
			t.Errorf("parseRate(%q) = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"0", "-1", "201", "NaN", "Inf", "fast", "1e400"} {
		if _, err := parseRate(text); err == nil {
			t.Errorf("parseRate(%q) was accepted", text)
		}
	}
}

func TestProductsOn(t *testing.T) {
	got := productsOn(`<li data-product="a-b"><li data-product="../x"><li data-product=""><li data-product="c`)
	if !slices.Equal(got, []string{"a-b"}) {
		t.Errorf("got %v", got)
	}
}

func TestVisitCountsEveryKindOfAnswer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	served := 0
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if served++; served == 60 {
			defer cancel()
		}
		switch {
		case r.URL.Path == "/":
			_, _ = w.Write([]byte(`<li data-product="mug">`))
		case r.URL.Path == "/checkout" && r.Method == http.MethodPost:
			_, _ = w.Write([]byte(`<b id="order-number">`))
		case served%9 == 0:
			w.WriteHeader(http.StatusServiceUnavailable)
		case served%7 == 0:
			w.WriteHeader(http.StatusNotFound)
		default:
			_, _ = w.Write([]byte("fine"))
		}
	}))
	defer shop.Close()
	chooser, err := role.Env{Random: strings.NewReader(strings.Repeat("seed", 8))}.Chooser()
	if err != nil {
		t.Fatal(err)
	}
	pace := make(chan time.Time)
	close(pace)
	generator := &Generator{Base: shop.URL, Pace: pace, Chooser: chooser, Log: slog.New(slog.DiscardHandler), Transport: http.DefaultTransport}
	counts := generator.Visit(ctx)
	if counts.Requests < 50 || counts.Orders == 0 || counts.Failed == 0 || counts.Refused == 0 {
		t.Errorf("counts are %+v", counts)
	}
}
