package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"heddle.io/heddle/control/agent/lock"
	"heddle.io/heddle/control/cluster"
	"heddle.io/heddle/control/durable"
)

// machineSettings are what was changed of the machine (of the network namespace that the run root belongs to) for its
// clusters, kept until the last of them goes.
type machineSettings struct {
	// Users are the clusters that need them, sorted.
	Users []string `json:"users"`
	// Old values, by key.
	Old map[string]string `json:"old"`
}

// lockPatience is how long others may hold the lock of what the clusters of a machine share.
const lockPatience = 30 * time.Second

// LockMachine takes the lock of what the clusters of a machine share.
func LockMachine(c cluster.Cluster) (*lock.File, error) {
	held, err := lock.Wait(filepath.Join(c.RunRoot, ".lock"), lockPatience)
	if err != nil {
		return nil, fmt.Errorf("wait for other clusters of this machine: %w", err)
	}
	return held, nil
}

func settingsPath(c cluster.Cluster) string { return filepath.Join(c.RunRoot, ".settings.json") }

// wanted are the settings that a cluster needs, as pairs: what comes later depends on what comes first.
func wanted(f cluster.Family) ([][2]string, error) {
	if f != cluster.IPv6 {
		return [][2]string{
			// Workloads reach the world through this machine.
			{"net/ipv4/ip_forward", "1"},
			// Frames between workloads stay on the bridge: iptables' FORWARD rules, for example Docker's, are not for them.
			{"net/bridge/bridge-nf-call-iptables", "0"},
		}, nil
	}
	// A machine that forwards forgets the routes that it heard of from routers, unless told otherwise.
	var out [][2]string
	devices, err := filepath.Glob("/proc/sys/net/ipv6/conf/*/accept_ra")
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, path := range devices {
		value, err := os.ReadFile(path)
		switch device := filepath.Base(filepath.Dir(path)); {
		case err != nil || strings.TrimSpace(string(value)) != "1":
		case device == "all" || device == "default" || device == "lo":
		default:
			out = append(out, [2]string{strings.TrimPrefix(path, "/proc/sys/"), "2"})
		}
	}
	return append(out, [2]string{"net/ipv6/conf/all/forwarding", "1"}, [2]string{"net/bridge/bridge-nf-call-ip6tables", "0"}), nil
}

// Forwarding changes the machine's settings that a cluster needs, and keeps the old values for [RestoreForwarding].
func Forwarding(c cluster.Cluster, f cluster.Family) error {
	held, err := LockMachine(c)
	if err != nil {
		return err
	}
	defer held.Close()
	kept, err := readSettings(c)
	if err != nil {
		return err
	}
	if !slices.Contains(kept.Users, c.Name) {
		kept.Users = append(kept.Users, c.Name)
		slices.Sort(kept.Users)
	}
	settings, err := wanted(f)
	if err != nil {
		return err
	}
	var changes [][2]string
	for _, s := range settings {
		content, err := os.ReadFile("/proc/sys/" + s[0])
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", s[0], err)
		}
		if now := strings.TrimSpace(string(content)); now != s[1] {
			changes = append(changes, s)
			// A value kept by an earlier run is the machine's own; that of now may be somebody's who undid ours.
			if _, ours := kept.Old[s[0]]; !ours {
				kept.Old[s[0]] = now
			}
		}
	}
	// Kept before it is changed: a crash in between restores what was not changed, which does no harm.
	if err := writeSettings(c, kept); err != nil {
		return err
	}
	for _, s := range changes {
		if err := sysctl(s[0], s[1]); err != nil {
			return err
		}
	}
	return nil
}

// RestoreForwarding puts back what [Forwarding] changed, once no other cluster needs it.
func RestoreForwarding(c cluster.Cluster) error {
	if _, err := os.Stat(c.RunRoot); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	held, err := LockMachine(c)
	if err != nil {
		return err
	}
	kept, err := readSettings(c)
	if err != nil {
		held.Close()
		return err
	}
	kept.Users = slices.DeleteFunc(kept.Users, func(user string) bool { return user == c.Name })
	if len(kept.Users) > 0 {
		defer held.Close()
		return writeSettings(c, kept)
	}
	var errs []error
	// Forwarding goes first: the routers' routes are forgotten by a machine that forwards and does not heed them.
	for _, first := range []bool{true, false} {
		for key, value := range kept.Old {
			if strings.HasSuffix(key, "/accept_ra") == first {
				continue
			}
			if err := sysctl(key, value); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
				continue
			}
			delete(kept.Old, key)
		}
	}
	if len(kept.Old) > 0 {
		// Kept for the next try, which is another `down`.
		defer held.Close()
		return errors.Join(append(errs, writeSettings(c, kept))...)
	}
	if err := durable.Remove(settingsPath(c)); err != nil {
		errs = append(errs, fmt.Errorf("forget kept settings: %w", err))
	}
	return errors.Join(append(errs, held.Remove())...)
}

func readSettings(c cluster.Cluster) (machineSettings, error) {
	kept := machineSettings{}
	if err := durable.ReadJSON(settingsPath(c), &kept); err != nil && !errors.Is(err, os.ErrNotExist) {
		return kept, fmt.Errorf("kept settings of this machine: %w; remove the file to leave the machine's settings as they are", err)
	}
	if kept.Old == nil {
		kept.Old = map[string]string{}
	}
	return kept, nil
}

func writeSettings(c cluster.Cluster, kept machineSettings) error {
	if err := durable.WriteJSON(settingsPath(c), kept, 0o600); err != nil {
		return fmt.Errorf("keep the machine's settings: %w", err)
	}
	return nil
}
