package seal

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// memoryName is what such a file is called in /proc/PID/fd.
const memoryName = "heddle-keys"

// maxMemory bounds what is read of it.
const maxMemory = 1 << 20

// Memory makes a file that is in memory only, for keys that can be used. Whoever starts the process with the ring holds it, so
// that one that is started again has the keys though their file is lost or the command does not answer just then: what
// could be read goes on to be read. It is gone with the last process that has it open.
func Memory() (*os.File, error) {
	fd, err := unix.MemfdCreate(memoryName, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(memoryName, unix.MFD_CLOEXEC) // Linux before 6.3 does not know the flag.
	}
	if err != nil {
		return nil, fmt.Errorf("make memory for keys: %w", err)
	}
	return os.NewFile(uintptr(fd), memoryName), nil
}

// OpenMemory opens the memory that another process holds, by its path below /proc. It refuses any other file.
func OpenMemory(path string) (*os.File, error) {
	target, err := os.Readlink(path)
	if err == nil && target != "/memfd:"+memoryName+" (deleted)" {
		err = fmt.Errorf("it is %s", target)
	}
	if err != nil {
		return nil, fmt.Errorf("memory for keys: %w", err)
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

var errNotInFile = errors.New("it is not in the file")

// MemoryVariable is the environment variable with the path of the memory that a controller's agent holds for it.
const MemoryVariable = "HEDDLE_KEYS_MEMORY"

// FindMemory opens the memory that a process has open, nil for none.
func FindMemory(pid int) *os.File {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return nil
	}
	for _, path := range paths {
		if f, err := OpenMemory(path); err == nil {
			return f
		}
	}
	return nil
}

// remembered is a key with its secret, whatever wraps it in the file.
type remembered struct {
	Primary string          `json:"primary"`
	Keys    []key           `json:"keys"`
	Secrets map[string]text `json:"secrets"`
}

// text is a secret in base64 that does not print itself.
type text string

// String implements [fmt.Stringer].
func (text) String() string { return "[redacted]" }

// GoString implements [fmt.GoStringer].
func (text) GoString() string { return "[redacted]" }

// recall reads what the ring of the process before remembered. What cannot be read is nothing.
func (r *Ring) recall() (keyFile, map[string]opened) {
	if r.options.Memory == nil {
		return keyFile{}, nil
	}
	content, err := io.ReadAll(io.NewSectionReader(r.options.Memory, 0, maxMemory))
	var all remembered
	if err == nil {
		err = json.Unmarshal(content, &all)
	}
	if err != nil {
		return keyFile{}, nil
	}
	had := map[string]opened{}
	for id, secret := range all.Secrets {
		bytes, err := base64.StdEncoding.DecodeString(string(secret))
		if err != nil || len(bytes) != keyBytes {
			continue
		}
		if aead, err := newAEAD(bytes); err == nil {
			had[id] = opened{AEAD: aead, secret: bytes, kept: errNotInFile}
		}
	}
	return keyFile{Primary: all.Primary, Keys: all.Keys}, had
}

// remember writes the keys that can be used where the next process finds them; mu is held. It is whole or none at all: a
// process that is killed between leaves what [Ring.recall] takes for nothing.
func (r *Ring) remember() error {
	if r.options.Memory == nil {
		return nil
	}
	all := remembered{Primary: r.keys.Primary, Keys: r.keys.Keys, Secrets: map[string]text{}}
	for id, k := range r.open {
		all.Secrets[id] = text(base64.StdEncoding.EncodeToString(k.secret))
	}
	content, err := json.Marshal(all)
	if err == nil {
		err = r.options.Memory.Truncate(0)
	}
	if err == nil {
		_, err = r.options.Memory.WriteAt(content, 0)
	}
	if err != nil {
		return fmt.Errorf("keep keys in memory: %w", err)
	}
	return nil
}
