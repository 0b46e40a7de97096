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
	// ModeSend is what workloads have that nobody has set: what the application sends its proxy, and what proxies send each other.
	ModeSend Mode = iota
	// ModeBoth has the application be sent to as well. Its programs must not wait in the ways of which docs/design/0032 tells.
	ModeBoth
	// ModeOff has the workload use TCP alone.
	ModeOff
)

// workload is a map's value, as in bpf/bypass.h.
type workload struct {
	ProxyCgroup  uint64
	Mode, Unused uint32
}

// SetWorkload sets the mode of a network namespace, given by its file, for connections that are made from now on. proxyGroup is the
// directory of its proxy's control group (version 2) where capture is by eBPF, which leaves the proxy no port of its own for what comes in; else
// it is empty.
func (b *Bypass) SetWorkload(netns, proxyGroup string, mode Mode) error {
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
		w.ProxyCgroup = group.Ino
	}
	if err := pinned.Put(b.objects.Maps, "workloads", cookie, w, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("set the TCP bypass mode of network namespace %s: %w", netns, err)
	}
	return nil
}

// ForgetWorkload removes the mode of a network namespace, given by its file, and what is counted of it: its sockets are closed. One that
// has none is no error.
func (b *Bypass) ForgetWorkload(netns string) error {
	cookie, err := network.Cookie(netns)
	if errors.Is(err, os.ErrNotExist) {
		return nil // The next sweep finds what is left of it.
	}
	if err != nil {
		return err
	}
	for _, m := range []string{"workloads", "workload_shares"} {
		if err := b.objects.Maps[m].Delete(cookie); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove network namespace %s from the TCP bypass: %w", netns, err)
		}
	}
	return nil
}

// KeepWorkloads removes the modes of all network namespaces but these, given by their files. Where one of them cannot be read, none is
// removed.
func (b *Bypass) KeepWorkloads(netns []string) error {
	alive := map[uint64]bool{}
	var errs []error
	for _, path := range netns {
		cookie, err := network.Cookie(path)
		switch {
		case err == nil:
			alive[cookie] = true
		case !errors.Is(err, os.ErrNotExist): // Else it goes just now.
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if err := pinned.RemoveKeys(b.objects.Maps["workloads"], func(cookie uint64) bool { return !alive[cookie] }); err != nil {
		return fmt.Errorf("remove the modes of workloads that are gone from the TCP bypass: %w", err)
	}
	return nil
}
