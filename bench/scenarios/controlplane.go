package scenarios

import (
	"context"
	"fmt"
	"os"
	"time"

	"heddle.io/heddle/bench/controlplane"
	"heddle.io/heddle/bench/results"
)

// ControllerFlag has the program run the controller that a scenario measures, in the folder that follows.
const ControllerFlag = "-serve-controller"

// controlPlane measures the controller with each number of proxies.
func controlPlane(o Options) (results.Result, error) {
	result := results.New("p8", 1, time.Now())
	self, err := os.Executable()
	if err != nil {
		return result, fmt.Errorf("find this program: %w", err)
	}
	for i := range 2 * len(o.Mesh.Proxies) {
		size := o.Mesh.Size
		size.Proxies, size.Disturbed = o.Mesh.Proxies[i/2], i%2 == 1
		subject := fmt.Sprintf("proxies-%d", size.Proxies)
		if size.Disturbed {
			subject = fmt.Sprintf("disturbed-proxies-%d", size.Proxies) // Some slow, some leaving.
		}
		fmt.Fprintf(o.Progress, "%s\n", subject)
		f, err := controlplane.Measure(context.Background(), size, o.Mesh.Changes, o.Progress, self, ControllerFlag)
		if err != nil {
			return result, fmt.Errorf("%s: %w", subject, err)
		}
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		result.Subjects[subject] = map[string]float64{
			"services": float64(size.Services), "endpoints_each": float64(size.Endpoints),
			"endpoint_p50_ms": ms(f.EndpointP50), "endpoint_p99_ms": ms(f.EndpointP99), "route_p50_ms": ms(f.RouteP50), "route_p99_ms": ms(f.RouteP99),
			"connect_s": f.Connect.Seconds(), "memory_mb": float64(f.Memory) / (1 << 20), "highest_memory_mb": float64(f.Highest) / (1 << 20),
			"bytes_per_change": f.Bytes,
			"connect_cpu_ms":   ms(f.ConnectCPU), "endpoint_cpu_ms": ms(f.EndpointCPU), "route_cpu_ms": ms(f.RouteCPU),
		}
	}
	return result, nil
}
