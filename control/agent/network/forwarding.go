package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"heddle.io/heddle/control/cluster"
)

// hostSettings are the machine's settings that a cluster needs.
var hostSettings = map[string]string{
	// Workloads reach the world through this machine.
	"net.ipv4.ip_forward": "1",
	// Frames between workloads stay on the bridge: iptables' FORWARD rules, for example Docker's, are not for them.
	"net.bridge.bridge-nf-call-iptables": "0",
}

func settingsPath(c cluster.Cluster) string { return filepath.Join(c.Run(), "settings.json") }

func settingPath(key string) string { return "/proc/sys/" + strings.ReplaceAll(key, ".", "/") }

// Forwarding changes the machine's settings that a cluster needs, and keeps the old values for [RestoreForwarding].
func Forwarding(c cluster.Cluster) error {
	old := map[string]string{}
	for key, value := range hostSettings {
		content, err := os.ReadFile(settingPath(key))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", key, err)
		}
		if now := strings.TrimSpace(string(content)); now != value {
			old[key] = now
		}
	}
	if len(old) == 0 {
		return nil
	}
	content, err := json.Marshal(old)
	if err != nil {
		return fmt.Errorf("encode settings: %w", err)
	}
	// Values kept by an earlier run are the machine's own; those of now may be ours in part.
	if _, err := os.Stat(settingsPath(c)); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(settingsPath(c), content, 0o600); err != nil {
			return fmt.Errorf("keep the machine's settings: %w", err)
		}
	}
	for key := range old {
		if err := sysctl(key, hostSettings[key]); err != nil {
			return err
		}
	}
	return nil
}

// RestoreForwarding puts back what [Forwarding] changed.
func RestoreForwarding(c cluster.Cluster) error {
	content, err := os.ReadFile(settingsPath(c))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read kept settings: %w", err)
	}
	var old map[string]string
	if err := json.Unmarshal(content, &old); err != nil {
		return fmt.Errorf("kept settings %s: %w", settingsPath(c), err)
	}
	var errs []error
	for key, value := range old {
		if _, ours := hostSettings[key]; ours {
			errs = append(errs, sysctl(key, value))
		}
	}
	return errors.Join(errs...)
}
