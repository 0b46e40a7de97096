package bypass

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// Each counter has its place in the status, and its reason in the reference.
func TestTheReferenceHasTheReasons(t *testing.T) {
	content, err := os.ReadFile("../../../docs/reference/bypass.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	for i := range programCountCOUNT_COUNT {
		reason := fallbacks[i] + refusals[i]
		switch i {
		case programCountCOUNT_CONNECTIONS, programCountCOUNT_MESSAGES, programCountCOUNT_BYTES:
			continue
		}
		if reason == "" || !strings.Contains(page, "\n| `"+reason+"` | ") {
			t.Errorf("counter %d, reason %q, is not in the status or has no row", i, reason)
		}
	}
	for field := range reflect.TypeFor[Status]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !strings.Contains(page, "`"+name) {
			t.Errorf("nothing is said of %q", name)
		}
	}
}
