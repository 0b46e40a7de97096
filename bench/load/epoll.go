package load

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// epoll waits for what there is something to read of, on one thread: Go's own network code takes as long for a request as the
// proxies do.
type epoll struct{ file int }

func newEpoll() (epoll, error) {
	file, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	return epoll{file}, err
}

// watch has [epoll.wait] give that number when there is something to read.
func (e epoll) watch(file, number int) error {
	return unix.EpollCtl(e.file, unix.EPOLL_CTL_ADD, file, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(number)})
}

// wait gives what there is something to read of, by its number in Fd, into events; nothing when so much time has passed.
func (e epoll) wait(events []unix.EpollEvent, most time.Duration) ([]unix.EpollEvent, error) {
	for until := time.Now().Add(most); ; most = time.Until(until) {
		bound := unix.NsecToTimespec(max(0, most).Nanoseconds())
		// Raw: to tell Go's scheduler of a call that may wait costs twice as many switches of a request as the proxies make.
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(e.file), uintptr(unsafe.Pointer(unsafe.SliceData(events))),
			uintptr(len(events)), uintptr(unsafe.Pointer(&bound)), 0, 0)
		switch {
		case errno == unix.EINTR:
			runtime.Gosched() // Go's collector may be what interrupts, and wait for this thread.
		case errno != 0:
			return nil, errno
		default:
			return events[:n], nil
		}
	}
}
