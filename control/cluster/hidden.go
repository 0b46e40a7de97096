package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Directories of the machine that are of no use empty: those that programs need where they are, and those below which each
// service has its own. What is below neededTrees is needed, too.
var (
	neededDirs  = []string{"/", "/etc", "/etc/ssl", "/etc/ssl/certs", "/etc/pki", "/etc/pki/tls", "/etc/pki/tls/certs", "/home", "/media", "/mnt", "/opt", "/srv", "/tmp", "/var", "/var/lib", "/var/tmp"}
	neededTrees = []string{"/bin", "/dev", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys", "/usr"}
)

// Hidden are the directories that no workload and no proxy is to see, even as root.
type Hidden struct {
	// Dirs are the cluster's own, and those of the files with secrets that options name. Directories, for a file that is replaced
	// while a process runs would be seen again.
	Dirs []string
	// because says of each of Dirs which option named a file in it, empty of the cluster's own.
	because []string
	// Shown are files with secrets whose directories have to be seen.
	Shown []Shown
}

// Shown is a file with secrets that cannot be hidden.
type Shown struct {
	// Flag of the option that names the file, without dashes.
	Flag string
	// GatewayProxy says that only the option of the gateways' proxy is in the way.
	GatewayProxy bool
	err          error
}

// Error says which file, why, and what to do about it.
func (s Shown) Error() string { return s.err.Error() }

// Unwrap is the error itself.
func (s Shown) Unwrap() error { return s.err }

// Hidden are the directories to hide by options, with those that cannot be: where programs find what they need, and where
// the cluster's programs are, or a link to one. Programs are files, or directories with some; the gateways' proxy of the
// options is one of them.
func (c Cluster) Hidden(o Options, programs ...string) Hidden {
	h := Hidden{Dirs: []string{c.RunRoot, c.DataRoot}, because: []string{"", ""}}
	for _, file := range []struct{ flag, path string }{{"secrets-key-file", o.SecretsKeyFile}, {"etcd-key", o.Etcd.Key}} {
		if file.path == "" {
			continue
		}
		real, err := filepath.EvalSymlinks(file.path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // The controller makes the keys of Secrets.
			h.Shown = append(h.Shown, Shown{Flag: file.flag, err: fmt.Errorf("--%s %s: %w", file.flag, file.path, err)})
		}
		dirs := []string{filepath.Dir(file.path)}
		if err == nil && filepath.Dir(real) != dirs[0] {
			dirs = append(dirs, filepath.Dir(real))
		}
		for _, dir := range dirs {
			must := slices.ContainsFunc(append(followed(dir), dir), needed) || holdsAny(dir, programs)
			switch {
			case must || holdsAny(dir, []string{o.GatewayProxy}):
				h.Shown = append(h.Shown, Shown{Flag: file.flag, GatewayProxy: !must,
					err: fmt.Errorf("--%s %s: workloads do not see the directory of this file, and they or their proxies need %s; move the file into a directory of its own", file.flag, file.path, dir)})
			case !slices.Contains(h.Dirs, dir):
				h.Dirs, h.because = append(h.Dirs, dir), append(h.because, fmt.Sprintf("the file of --%s", file.flag))
			}
		}
	}
	return h
}

// Refuse says why a program cannot be started, because it is in a directory that is hidden.
func (h Hidden) Refuse(program string) error {
	for i, dir := range h.Dirs {
		if holdsAny(dir, []string{program}) {
			return fmt.Errorf("program %s is in %s, which workloads do not see because it holds %s; move one of them elsewhere", program, dir, cmp.Or(h.because[i], "the cluster's own files"))
		}
	}
	return nil
}

// holdsAny says whether one of the paths, or where it leads to, is a directory, where that is, or below it.
func holdsAny(dir string, paths []string) bool {
	for _, path := range paths {
		if path == "" {
			continue
		}
		for _, d := range append([]string{dir}, followed(dir)...) {
			for _, p := range append([]string{path}, followed(path)...) {
				if p == d || strings.HasPrefix(p, strings.TrimSuffix(d, "/")+"/") {
					return true
				}
			}
		}
	}
	return false
}

// followed is where a path leads to, if it is there.
func followed(path string) []string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return []string{real}
	}
	return nil
}

func needed(dir string) bool {
	return slices.Contains(neededDirs, dir) || slices.ContainsFunc(neededTrees, func(tree string) bool {
		return dir == tree || strings.HasPrefix(dir, tree+"/")
	})
}
