package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// quotaPeriod is in what time a [Quota] is counted. The kernel looks at what a group has used at each tick, 1 to 10 ms apart.
const quotaPeriod = 20 * time.Millisecond

// Quota is a share of a processor for all programs that are in its control group.
type Quota struct{ directory string }

// NewQuota makes such a group, of so many percent of one processor, under the cpu controller of whichever version the system has
// it in. It takes root.
func NewQuota(percent int) (*Quota, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	root, v2, err := cpuController(string(mounts), func(root string) (string, error) {
		controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
		return string(controllers), err
	})
	if err != nil {
		return nil, err
	}
	period, runtime := quotaPeriod.Microseconds(), quotaPeriod.Microseconds()*int64(percent)/100
	settings := [][2]string{{"cpu.cfs_period_us", strconv.FormatInt(period, 10)}, {"cpu.cfs_quota_us", strconv.FormatInt(runtime, 10)}}
	if v2 {
		settings = [][2]string{{"cpu.max", fmt.Sprintf("%d %d", runtime, period)}}
		// It may be on already. Where it can't be, the group has no cpu.max.
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+cpu"), 0)
	}
	q := &Quota{directory: filepath.Join(root, fmt.Sprintf("heddle-bench-%d", os.Getpid()))}
	if err := os.Mkdir(q.directory, 0o755); err != nil {
		return nil, fmt.Errorf("make a control group for the share of a processor (it takes root): %w", err)
	}
	for _, setting := range settings {
		// Without O_CREATE: in a control group, what is not there can't be set.
		file, err := os.OpenFile(filepath.Join(q.directory, setting[0]), os.O_WRONLY, 0)
		if err == nil {
			_, err = file.WriteString(setting[1])
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("limit the control group to %d %%: %w", percent, err), q.Remove())
		}
	}
	return q, nil
}

// Remove the group, once its programs have ended.
func (q *Quota) Remove() error { return os.Remove(q.directory) }

// under is how a program is started in the group.
func (q *Quota) under(argv []string) []string {
	return append([]string{"sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(q.directory, "cgroup.procs")}, argv...)
}

// cpuController finds where groups with the cpu controller are, in what /proc/self/mounts says; controllers reads those of a
// hierarchy of version 2.
func cpuController(mounts string, controllers func(root string) (string, error)) (root string, v2 bool, err error) {
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		switch fields[2] {
		case "cgroup":
			if slices.Contains(strings.Split(fields[3], ","), "cpu") {
				return fields[1], false, nil
			}
		case "cgroup2":
			has, err := controllers(fields[1])
			if err != nil {
				return "", false, err
			}
			if slices.Contains(strings.Fields(has), "cpu") {
				return fields[1], true, nil
			}
		}
	}
	return "", false, errors.New("no control group hierarchy here has the cpu controller")
}
