package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	agent "heddle.io/heddle/control/agent/process"
)

// quotaPeriod is in what time a [Quota] is counted. In the kernel's own, 100 ms, a proxy that stood still has caught up long before
// it stands still again. The kernel looks at what a group has used at each tick, 1 to 10 ms apart.
const quotaPeriod = 20 * time.Millisecond

// LeastQuota is the smallest share, in percent: the kernel takes none below 1 ms.
const LeastQuota = 5

// Quota is a share of a processor, for all programs together that are in its control group.
type Quota struct {
	hierarchies agent.Hierarchies
	group       string
	directories []string
}

// NewQuota makes such a group, of so many percent of one processor, in whichever version has the cpu controller. It takes root.
func NewQuota(percent int) (*Quota, error) {
	hierarchies, err := agent.Hierarchy()
	if err != nil {
		return nil, err
	}
	q := &Quota{hierarchies: hierarchies, group: fmt.Sprintf("heddle-bench-%d", os.Getpid())}
	var unenforced []string
	q.directories, unenforced, err = hierarchies.Create(q.group, agent.Limits{MilliCPU: 10 * int64(percent)})
	if err == nil && len(unenforced) > 0 {
		err = errors.New("no control group hierarchy here has the cpu controller")
	}
	if err == nil {
		err = q.shorten(percent)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("give programs %d %% of a processor: %w", percent, err), q.Remove())
	}
	return q, nil
}

// shorten counts the share in [quotaPeriod].
func (q *Quota) shorten(percent int) error {
	period := quotaPeriod.Microseconds()
	runtime := period * int64(percent) / 100
	for _, setting := range [][2]string{
		{"cpu.cfs_quota_us", strconv.FormatInt(runtime, 10)}, {"cpu.cfs_period_us", strconv.FormatInt(period, 10)},
		{"cpu.max", fmt.Sprintf("%d %d", runtime, period)},
	} {
		for _, directory := range q.directories {
			file := filepath.Join(directory, setting[0])
			if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
				continue // Of the other version, or another controller's hierarchy.
			}
			if err := os.WriteFile(file, []byte(setting[1]), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// Remove the group, with what still runs in it.
func (q *Quota) Remove() error { return q.hierarchies.Remove(q.group) }

// under is how a program is started in the group.
func (q *Quota) under(argv []string) []string {
	const join = `while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"`
	started := append([]string{"sh", "-c", join, "sh"}, q.directories...)
	return append(append(started, "--"), argv...)
}
