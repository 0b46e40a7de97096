package bypass

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"heddle.io/heddle/control/agent/network"
	"heddle.io/heddle/control/agent/pinned"
)

// Mode says what of a workload bypasses TCP.
type Mode uint32

// Modes, as in bpf/bypass.h.
const (
	// Send is what workloads have that nobody has set: what the application sends its proxy, and what proxies send each other.
	Send Mode = iota
	// Both has the application be sent to as well. Its programs must not wait in the ways of which docs/design/0032 tells.
	Both
	// Off has the workload use TCP alone.
	Off
)

// workload is a map's value, as in bpf/bypass.h.
type workload struct {
	Proxy        uint64
	Mode, Unused uint32
}

// Set says how the connections of a workload that are made from now on are treated: by the file of its network namespace and
// the directory of its proxy's control group (version 2), by which a proxy is known that has no port of its own for what comes in; empty
// when it has.
func (b *Bypass) Set(netns, proxyGroup string, mode Mode) error {
	cookie, err := network.Cookie(netns)
	if err != nil {
		return err
	}
	w := workload{Mode: uint32(mode)}
	if proxyGroup != "" {
		var group unix.Stat_t
		if err := unix.Stat(proxyGroup, &group); err != nil {
			return fmt.Errorf("look at the proxy's control group %s: %w", proxyGroup, err)
		}
		w.Proxy = group.Ino
	}
	if err := b.objects.Maps["workloads"].Put(cookie, w); err != nil {
		return fmt.Errorf("tell the bypass of %s: %w", netns, err)
	}
	return nil
}

// Forget ends what [Bypass.Set] said of a network namespace, given by its file; one of which nothing was said is no error.
func (b *Bypass) Forget(netns string) error {
	cookie, err := network.Cookie(netns)
	if errors.Is(err, os.ErrNotExist) {
		return nil // The next sweep finds what is left of it.
	}
	if err != nil {
		return err
	}
	if err := b.objects.Maps["workloads"].Delete(cookie); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("have the bypass forget %s: %w", netns, err)
	}
	return nil
}

// Sweep forgets all network namespaces but these, given by their files.
func (b *Bypass) Sweep(netns []string) error {
	alive := map[uint64]bool{}
	for _, path := range netns {
		cookie, err := network.Cookie(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // It goes just now.
		}
		if err != nil {
			return err
		}
		alive[cookie] = true
	}
	if err := pinned.RemoveKeys(b.objects.Maps["workloads"], func(cookie uint64) bool { return !alive[cookie] }); err != nil {
		return fmt.Errorf("forget workloads of the bypass: %w", err)
	}
	return nil
}
