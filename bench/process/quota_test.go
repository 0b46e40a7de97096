package process

import (
	"os"
	"testing"
	"time"
)

func TestAQuotaLimitsAProgram(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("control groups are made by root")
	}
	quota, err := NewQuota(20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := quota.Remove(); err != nil {
			t.Error(err)
		}
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	begun := time.Now()
	p, err := Start("a loop", Place{Quota: quota}, "sh", "-c", "while :; do :; done")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	const enough = 200 * time.Millisecond
	for {
		cost, err := p.Cost()
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(begun)
		if took > time.Minute {
			t.Fatalf("the loop has had %v of a processor in %v", cost.User+cost.System, took)
		}
		if cost.User+cost.System < enough {
			<-tick.C
			continue
		}
		// A fifth of a processor: a second. On a busy machine it takes longer, never less, but for what one period may exceed.
		if took < 700*time.Millisecond {
			t.Errorf("%v of a processor took %v", cost.User+cost.System, took)
		}
		return
	}
}
