package scenarios

import (
	"fmt"
	"net"
	"net/http"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"heddle.io/heddle/bench/peers"
)

// placed reads of a proxy's metrics what its balance did: how many connections the worker was given that has most, how many workers
// handed to each other when they came, and how many moved later. What a proxy does not count is absent.
func placed(address string) (map[string]float64, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	admin := fmt.Sprintf("http://%s/stats/prometheus", net.JoinHostPort(host, strconv.Itoa(peers.AdminPort(number))))
	answer, err := http.Get(admin)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", admin, err)
	}
	figures := map[string]float64{}
	for figure, name := range map[string]string{"handed_over": "heddle_listener_cx_handed_over", "moved": "heddle_listener_cx_moved"} {
		for _, m := range families[name].GetMetric() {
			figures[figure] += value(m)
		}
	}
	for _, m := range families["envoy_listener_worker_downstream_cx_total"].GetMetric() {
		figures["most_of_one_worker"] = max(figures["most_of_one_worker"], value(m))
	}
	return figures, nil
}

// value of a counter or of a metric without a type.
func value(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetUntyped().GetValue() + m.GetGauge().GetValue()
}
