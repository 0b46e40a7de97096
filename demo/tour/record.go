package tour

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// RecordPath is where the tour keeps what it made on this machine, so that
// another process can take it away, whatever became of the first.
const RecordPath = "/run/heddle-demo.json"

// record is a file that lists what the tour made. It is locked by the tour that
// runs.
type record struct {
	file *os.File
	path string
	made made
}

// made is the record's content.
type made struct {
	// Clusters in the order in which they were started.
	Clusters []string `json:"clusters"`
}

// errRunning says that another tour holds the record; PID is its process.
type errRunning struct{ PID int }

func (e errRunning) Error() string {
	return fmt.Sprintf("a demo is running already, process %d; end it with Ctrl-C where it runs, or with `make demo-down`", e.PID)
}

// openRecord locks the record and reads it. It is made when there is none.
func openRecord(path string) (*record, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, os.ErrPermission) {
			return nil, fmt.Errorf("the demo starts clusters, which only root can do: run it as root or with sudo (%w)", err)
		}
		if err != nil {
			return nil, fmt.Errorf("open the demo's record: %w", err)
		}
		again, err := lock(f, path)
		if err != nil {
			f.Close()
			return nil, err
		}
		if again {
			f.Close()
			continue
		}
		r := &record{file: f, path: path}
		content, err := io.ReadAll(io.LimitReader(f, 1<<20))
		if err == nil && len(content) > 0 {
			err = json.Unmarshal(content, &r.made)
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("the demo's record %s: %w; remove the file, and the clusters it may have listed with `heddle down --name <name>`", path, err)
		}
		return r, nil
	}
}

// lock takes the lock for this process. again says that the file was removed
// meanwhile, so that the lock keeps nobody out.
func lock(f *os.File, path string) (again bool, err error) {
	// A lock of this kind belongs to the process, no child inherits it, and the kernel tells who holds it (fcntl(2)).
	want := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &want)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		holder := unix.Flock_t{Type: unix.F_WRLCK}
		if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &holder); err != nil {
			return false, fmt.Errorf("ask who holds %s: %w", path, err)
		}
		if holder.Type == unix.F_UNLCK {
			return true, nil
		}
		return false, errRunning{PID: int(holder.Pid)}
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", path, err)
	}
	var held, found unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &held); err != nil {
		return false, fmt.Errorf("look at %s: %w", path, err)
	}
	if err := unix.Stat(path, &found); errors.Is(err, unix.ENOENT) {
		return true, nil
	} else if err != nil {
		return false, fmt.Errorf("look at %s: %w", path, err)
	}
	return held.Ino != found.Ino || held.Dev != found.Dev, nil
}

// add notes a cluster before it is started.
func (r *record) add(cluster string) error {
	return r.keep(made{Clusters: append(append([]string{}, r.made.Clusters...), cluster)})
}

// drop forgets a cluster that was removed.
func (r *record) drop(cluster string) error {
	var left []string
	for _, c := range r.made.Clusters {
		if c != cluster {
			left = append(left, c)
		}
	}
	return r.keep(made{Clusters: left})
}

func (r *record) keep(content made) error {
	encoded, err := json.Marshal(content)
	if err == nil {
		err = r.file.Truncate(0)
	}
	if err == nil {
		_, err = r.file.WriteAt(append(encoded, '\n'), 0)
	}
	if err != nil {
		return fmt.Errorf("note in %s what the demo makes: %w", r.path, err)
	}
	r.made = content
	return nil
}

// close ends the hold on the record. An empty one is removed.
func (r *record) close() error {
	var err error
	if len(r.made.Clusters) == 0 {
		err = os.Remove(r.path)
	}
	return errors.Join(err, r.file.Close())
}
