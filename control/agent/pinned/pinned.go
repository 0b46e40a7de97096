// Package pinned keeps eBPF maps and links in a directory that is a BPF file system, so that they go on without the process
// that made them, and another one takes them over.
package pinned

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Mount makes a directory a BPF file system that only root can look into, if it is none.
func Mount(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory of eBPF programs: %w", err)
	}
	mounted, err := IsMounted(dir)
	if err != nil || mounted {
		return err
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount a BPF file system on %s, which needs CONFIG_BPF_SYSCALL and CAP_SYS_ADMIN: %w", dir, err)
	}
	return nil
}

// Names of what is pinned in a directory. One that is missing, or no BPF file system, has none.
func Names(dir string) ([]string, error) {
	mounted, err := IsMounted(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil || !mounted {
		return nil, err
	}
	pins, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look at eBPF programs: %w", err)
	}
	var names []string
	for _, pin := range pins {
		// The others are the file system's own.
		if !strings.HasSuffix(pin.Name(), ".debug") {
			names = append(names, pin.Name())
		}
	}
	return names, nil
}

// Remove removes all pins, and the file system with them. A directory where there is none is no error.
func Remove(dir string) error {
	mounted, err := IsMounted(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil || !mounted {
		return err
	}
	pins, err := Names(dir)
	if err != nil {
		return err
	}
	// Pins first: a mount namespace that was made meanwhile keeps the file system, but not what is removed from it.
	var errs []error
	for _, pin := range pins {
		errs = append(errs, Drop(filepath.Join(dir, pin)))
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
	}
	return errors.Join(errs...)
}

// Drop removes a pin. If it is of a link, its program has ended by then: the kernel ends those of which it only loses the pin some time
// later.
func Drop(pin string) error {
	if l, err := link.LoadPinnedLink(pin, nil); err == nil {
		// What it was attached to may be gone.
		_ = l.Detach()
		_ = l.Close()
	}
	if err := os.Remove(pin); err != nil {
		return fmt.Errorf("remove an eBPF pin: %w", err)
	}
	return nil
}

// IsMounted says whether a directory is a BPF file system.
func IsMounted(dir string) (bool, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return false, fmt.Errorf("look at %s: %w", dir, err)
	}
	return s.Type == unix.BPF_FS_MAGIC, nil
}

// settings is the map with the programs' variables.
const settings = ".data"

// pinName: names with dots are refused by the BPF file system.
func pinName(m string) string {
	if m == settings {
		return "settings"
	}
	return m
}

// isKept says whether a map outlives its process: all but the constants, which come with the programs.
func isKept(name string) bool { return name != ".rodata" }

// Maps opens those maps of a specification that an earlier process kept, for [ebpf.CollectionOptions.MapReplacements]; the
// caller closes them ([Close]).
func Maps(dir string, spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	kept := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if !isKept(name) {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, pinName(name)), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			Close(kept)
			return nil, fmt.Errorf("open map %s of the process before: %w", name, err)
		}
		kept[name] = m
	}
	return kept, nil
}

// Keep pins the maps that are not yet.
func Keep(dir string, maps map[string]*ebpf.Map) error {
	for name, m := range maps {
		if !isKept(name) || m.IsPinned() {
			continue
		}
		if err := m.Pin(filepath.Join(dir, pinName(name))); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	return nil
}

// Close closes maps, and leaves what is pinned.
func Close(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		_ = m.Close()
	}
}
