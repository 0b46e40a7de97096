package bypass

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// The oldest kernel that is taken: before, redirected bytes are not charged to the receiver ("tcp_bpf: Charge receive socket
// buffer in bpf_tcp_ingress()"), and a reader that stops would have its peer fill the machine's memory.
const minimumMajor, minimumMinor = 6, 13

func kernelRelease() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("ask for the kernel's release: %w", err)
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}

// checkKernel refuses kernels on which the bypass is not safe.
func checkKernel(release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("kernel release %q is not a version; the bypass needs Linux %d.%d", release, minimumMajor, minimumMinor)
	}
	if major < minimumMajor || major == minimumMajor && minor < minimumMinor {
		return fmt.Errorf("kernel %s does not bound what a bypassed receiver leaves unread; the bypass needs Linux %d.%d", release, minimumMajor, minimumMinor)
	}
	return nil
}
