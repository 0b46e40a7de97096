// Package sandbox confines a process to what an ordinary program of an unprivileged user needs: a view of the machine's
// files that is read-only and shows nobody's secrets, its own /proc, /dev, /sys and /tmp, no capabilities, and Docker's
// default list of system calls.
//
// Its functions change the calling thread (capabilities, user, filter) or the mount namespace that the thread is in, and are
// for a launcher that becomes the process: what they do cannot be undone.
package sandbox

// Config of the files that a process sees.
type Config struct {
	// Program is the file to run, absolute. It stays visible wherever it is, but for the directories of Hide.
	Program string
	// Hide lists directories that look empty, beside those that always do.
	Hide []string
	// Keep lists directories that stay visible, read-only, although one above is hidden.
	Keep []string
	// Resolv replaces /etc/resolv.conf; empty leaves it.
	Resolv string
}

// Bounds of what a process can write to outside of its own memory. The pages count against its memory limit, too.
const (
	// TmpBytes bounds /tmp and /var/tmp together.
	TmpBytes = 256 << 20
	// TmpFiles bounds the files in them.
	TmpFiles = 1 << 16
	// ShmBytes bounds /dev/shm, as Docker does.
	ShmBytes = 64 << 20
)
