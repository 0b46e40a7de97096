package cluster

import (
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

// Hidden are the directories that no workload and no proxy is to see, even as root: the cluster's own, and those of the files
// with secrets that options name. Directories, for a file that is replaced while a process runs would be seen again. It is an
// error when such a file is where programs find what they need, or beside the cluster's programs, which are in the directory
// programs.
func (c Cluster) Hidden(o Options, programs string) ([]string, error) {
	hidden := []string{c.RunRoot, c.DataRoot}
	for _, file := range []struct{ flag, path string }{{"--secrets-key-file", o.SecretsKeyFile}, {"--etcd-key", o.Etcd.Key}} {
		if file.path == "" {
			continue
		}
		paths := []string{file.path}
		switch real, err := filepath.EvalSymlinks(file.path); {
		case err == nil:
			paths = append(paths, real)
		case !errors.Is(err, fs.ErrNotExist): // The controller makes the keys of Secrets.
			return nil, fmt.Errorf("%s %s: %w", file.flag, file.path, err)
		}
		for _, path := range paths {
			dir := filepath.Dir(path)
			if needed(dir) || dir == programs || strings.HasPrefix(programs, dir+"/") {
				return nil, fmt.Errorf("%s %s: workloads do not see the directory of this file, and they need %s; move the file into a directory of its own", file.flag, file.path, dir)
			}
			if !slices.Contains(hidden, dir) {
				hidden = append(hidden, dir)
			}
		}
	}
	return hidden, nil
}

func needed(dir string) bool {
	return slices.Contains(neededDirs, dir) || slices.ContainsFunc(neededTrees, func(tree string) bool {
		return dir == tree || strings.HasPrefix(dir, tree+"/")
	})
}
