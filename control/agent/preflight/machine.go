package preflight

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/capture"
	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/process"
	"heddle.io/heddle/control/cluster"
)

// proxyTimeout is for a proxy program that checks a bootstrap, which takes milliseconds.
const proxyTimeout = 10 * time.Second

// Machine gives the probes that look at this machine for a cluster with these options. bin is where programs are looked
// up before PATH.
func Machine(c cluster.Cluster, o cluster.Options, bin string) Probes {
	return Probes{
		UID: os.Geteuid,
		Kernel: func() (string, error) {
			var name unix.Utsname
			err := unix.Uname(&name)
			return unix.ByteSliceToString(name.Release[:]), err
		},
		Namespaces: namespaces,
		NFTables: func() error {
			output, err := exec.Command("nft", "list", "tables").CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(output)))
			}
			return nil
		},
		Capture: func() error {
			h, err := process.Hierarchy()
			if err == nil && h.V2 == "" {
				err = process.ErrNoVersion2
			}
			if err != nil {
				return err
			}
			return capture.Probe()
		},
		Program:    func(name string) (string, error) { return process.Resolve(name, bin) },
		Hyperscan:  func(proxy string) error { return hyperscan(proxy, bin) },
		IPv6:       func() error { _, err := os.Stat("/proc/net/if_inet6"); return err },
		Forwarding: forwarding,
		Cgroups: func() ([]string, error) {
			h, err := process.Hierarchy()
			var offered []string
			for name := range h.V1 {
				offered = append(offered, name)
			}
			for name := range h.V2Offered {
				offered = append(offered, name)
			}
			if h.V2 != "" && len(offered) == 0 {
				offered = append(offered, "(grouping only)")
			}
			return offered, err
		},
		Disk: func(path string) (uint64, error) {
			var fs unix.Statfs_t
			if err := unix.Statfs(existing(path), &fs); err != nil {
				return 0, err
			}
			return fs.Bavail * uint64(fs.Bsize), nil
		},
		Writable: func(path string) error { return unix.Access(existing(path), unix.W_OK) },
		Conflict: func() (string, error) {
			ranges := o.Family.Ranges()
			if o.Isolated {
				// Inside, all addresses are free.
				return network.Conflict(cluster.WANBridge, o.Family, ranges.WAN)
			}
			return network.Conflict(c.Bridge(), o.Family, ranges.Pods, ranges.Services, ranges.Globals)
		},
		Listen: func(address string) error {
			l, err := net.Listen("tcp", address)
			if errors.Is(err, syscall.EADDRNOTAVAIL) {
				// The address comes with the cluster's bridge.
				return nil
			}
			if err != nil {
				return err
			}
			if err := l.Close(); err != nil {
				return err
			}
			packets, err := net.ListenPacket("udp", address)
			if err != nil {
				return err
			}
			return packets.Close()
		},
	}
}

// withHyperscan is a bootstrap that has nothing but the engine.
const withHyperscan = `default_regex_engine:
  name: envoy.regex_engines.hyperscan
  typed_config: { "@type": type.googleapis.com/envoy.extensions.regex_engines.hyperscan.v3alpha.Hyperscan }
`

// hyperscan asks the proxy program, whose loader decides. A program that is missing is another finding.
func hyperscan(proxy, bin string) error {
	path, err := process.Resolve(proxy, bin)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), proxyTimeout)
	defer cancel()
	output, err := exec.CommandContext(ctx, path, "--mode", "validate", "--config-yaml", withHyperscan).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(output)))
	}
	return nil
}

// existing is the nearest directory above a path that exists.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == "/" || path == "." {
			return path
		}
		path = filepath.Dir(path)
	}
}

// namespaces tries on a thread that is thrown away.
func namespaces() error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS)
	}()
	return <-done
}

func forwarding(setting string) error {
	path := "/proc/sys/" + setting
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(content)) == "1" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return f.Close()
}
