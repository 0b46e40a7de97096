package capture

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// Each counter has its place in the status and its metric, and each reason its row, in the reference.
func TestTheReferenceHasTheReasons(t *testing.T) {
	content, err := os.ReadFile("../../../docs/reference/capture.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	for i := range programCountCOUNT_COUNT {
		reason := refusals[i]
		switch i {
		case programCountCOUNT_OUTBOUND, programCountCOUNT_INBOUND, programCountCOUNT_DNS:
			continue
		}
		if reason == "" || !strings.Contains(page, "\n| `"+reason+"` | ") {
			t.Errorf("counter %d, reason %q, is not in the status or has no row", i, reason)
		}
	}
	for field := range reflect.TypeFor[Status]().Fields() {
		if name := field.Tag.Get("json"); !strings.Contains(page, "`heddle_capture_"+name+"_total`") {
			t.Errorf("nothing is said of the metric for %q", name)
		}
	}
}
