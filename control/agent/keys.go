package agent

import (
	"fmt"
	"os"
	"sync"

	"heddle.io/heddle/control/seal"
)

// keyMemory holds the keys of Secrets for the controller, in memory that no file is: a controller that dies comes back with
// what it could read, though the file of keys is lost or the key management service does not answer just then. An agent that
// takes over a controller takes it over too; with both of them it is gone.
type keyMemory struct {
	mu   sync.Mutex
	file *os.File
}

// take takes over what a controller that runs has.
func (k *keyMemory) take(pid int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file == nil {
		k.file = seal.FindMemory(pid)
	}
}

// environment tells a controller where it is.
func (k *keyMemory) environment() ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file == nil {
		var err error
		if k.file, err = seal.Memory(); err != nil {
			return nil, err
		}
	}
	return []string{fmt.Sprintf("%s=/proc/%d/fd/%d", seal.MemoryVariable, os.Getpid(), k.file.Fd())}, nil
}

func (k *keyMemory) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file != nil {
		// It is memory: closing it cannot lose anything that is still to be written.
		_ = k.file.Close()
	}
}
