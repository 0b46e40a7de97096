package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// rebuiltTrees are where most of what is hidden is. The process has directories of its own there: what covers one of the machine's files or
// directories is gone when the machine puts another in its place, and what there is not yet cannot be covered.
var rebuiltTrees = []string{"/etc", "/var"}

// hidden is what a process does not see: directories, which look empty, and files, which are not there.
type hidden struct{ dirs, files []string }

// hiddenBy is what is hidden by a configuration, each by its name and where that leads.
func hiddenBy(c Config) hidden {
	h := hidden{dirs: slices.Concat(hiddenDirs, c.Hide), files: slices.Clone(hiddenFiles)}
	h.dirs = append(h.dirs, places(h.dirs)...)
	for _, path := range hiddenFiles {
		if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
			h.files = append(h.files, real)
		}
	}
	return h
}

// within says whether something below a directory is hidden, or would be if it were there.
func (h hidden) within(dir string) bool {
	inside := func(path string) bool { return strings.HasPrefix(path, dir+"/") }
	return slices.ContainsFunc(h.dirs, inside) || slices.ContainsFunc(h.files, inside)
}

// rebuild puts directories of the process's own in the place of those in which something is hidden. What is to be seen of the machine's is
// mounted in them, entry by entry. It returns the trees that were rebuilt, which can still be written to.
func rebuild(h hidden) ([]string, error) {
	before := unix.Umask(0)
	defer unix.Umask(before)
	var out []string
	for _, top := range rebuiltTrees {
		info, err := os.Lstat(top)
		if err != nil || !info.IsDir() {
			continue // Another directory's name: what it leads to is covered.
		}
		const made = "/tmp/.rebuilt"
		if err := os.Mkdir(made, 0o700); err != nil {
			return nil, fmt.Errorf("make place for %s: %w", top, err)
		}
		if err := unix.Mount("none", made, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=64k,nr_inodes=65536,mode=0755"); err != nil {
			return nil, fmt.Errorf("make %s: %w", top, err)
		}
		if err := h.fill(made, top); err != nil {
			return nil, err
		}
		if err := unix.Mount(made, top, "", unix.MS_MOVE, ""); err != nil {
			return nil, fmt.Errorf("put %s in its place: %w", top, err)
		}
		if err := os.Remove(made); err != nil {
			return nil, fmt.Errorf("make %s: %w", top, err)
		}
		out = append(out, top)
	}
	return out, nil
}

// fill has a directory of the process's own show what is to be seen of one of the machine's.
func (h hidden) fill(own, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look for what is to be seen: %w", err)
	}
	for _, e := range entries {
		path, to := filepath.Join(dir, e.Name()), filepath.Join(own, e.Name())
		switch {
		case slices.Contains(h.files, path):
		case slices.Contains(h.dirs, path):
			err = os.Mkdir(to, 0o755)
		case e.Type()&os.ModeSymlink != 0:
			var target string
			if target, err = os.Readlink(path); err == nil {
				err = os.Symlink(target, to)
			}
		case e.IsDir() && h.within(path):
			if err = os.Mkdir(to, 0o700); err == nil {
				err = h.fill(to, path)
			}
		default:
			err = bind(path, to, e.IsDir())
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) { // The machine may have removed it meanwhile.
			return fmt.Errorf("show %s: %w", path, err)
		}
	}
	var like unix.Stat_t
	if err := unix.Stat(dir, &like); err != nil {
		return fmt.Errorf("look at %s: %w", dir, err)
	}
	if err := errors.Join(unix.Chown(own, int(like.Uid), int(like.Gid)), unix.Chmod(own, like.Mode&0o7777)); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	return nil
}

// bind mounts a file or directory, with what is mounted below it, where there is nothing yet.
func bind(path, to string, dir bool) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if dir {
		err = os.Mkdir(to, 0o700)
	} else {
		err = os.WriteFile(to, nil, 0o600)
	}
	if err != nil {
		return err
	}
	return unix.MoveMount(fd, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
